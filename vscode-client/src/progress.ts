/**
 * The server's progress as notifications with a button to cancel. The library would put it into the status bar,
 * without one.
 */

import { ProgressLocation, window, type Disposable, type Progress } from "vscode";
import type { ProgressToken, WorkDoneProgressBegin, WorkDoneProgressEnd, WorkDoneProgressReport } from "vscode-languageclient/node";

export type WorkDone = WorkDoneProgressBegin | WorkDoneProgressReport | WorkDoneProgressEnd;

export class ProgressNotifications implements Disposable {
  readonly #shown = new Map<ProgressToken, Notification>();

  /** `cancel` is called when the user presses the button. */
  constructor(private readonly cancel: (token: ProgressToken) => void) {}

  show(token: ProgressToken, value: WorkDone): void {
    if (value.kind === "begin") {
      this.#shown.get(token)?.end();
      const onCancel = (): void => {
        this.cancel(token);
      };
      this.#shown.set(token, new Notification(value, onCancel));
    } else if (value.kind === "report") {
      this.#shown.get(token)?.report(value);
    } else {
      this.#shown.get(token)?.end();
      this.#shown.delete(token);
    }
  }

  /** Takes down whatever is shown: the server is gone. */
  dispose(): void {
    this.#shown.forEach((notification) => {
      notification.end();
    });
    this.#shown.clear();
  }
}

class Notification {
  #end: () => void = () => undefined;
  #progress: Progress<{ message?: string; increment?: number }> | undefined;
  #percentage = 0;

  constructor({ title, cancellable }: WorkDoneProgressBegin, onCancel: () => void) {
    const ended = new Promise<void>((resolve) => {
      this.#end = resolve;
    });
    const options = { location: ProgressLocation.Notification, title, cancellable: cancellable ?? false };
    void window.withProgress(options, (progress, token) => {
      this.#progress = progress;
      token.onCancellationRequested(onCancel);
      return ended;
    });
  }

  report({ message, percentage = this.#percentage }: WorkDoneProgressReport): void {
    const increment = Math.max(percentage - this.#percentage, 0);
    this.#percentage += increment;
    this.#progress?.report({ increment, ...(message === undefined ? {} : { message }) });
  }

  end(): void {
    this.#end();
  }
}
