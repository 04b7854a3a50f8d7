/**
 * Owns the connection to `midline serve`: starting, stopping, restarting, and the status that comes of it.
 * Completions themselves are LSP and pass through `vscode-languageclient` unseen.
 */

import { accessSync, constants, statSync } from "node:fs";
import { homedir } from "node:os";
import { EventEmitter, window, workspace, type Disposable, type Event, type TextDocument, type TextEditor } from "vscode";
import {
  CloseAction,
  DidChangeConfigurationNotification,
  ErrorAction,
  ExecuteCommandRequest,
  LanguageClient,
  RevealOutputChannelOn,
  ShowMessageNotification,
  State,
  WorkDoneProgressCancelNotification,
  type CloseHandlerResult,
  type LanguageClientOptions,
} from "vscode-languageclient/node";
import { messageOf, type Logger } from "./logger";
import { DOWNLOAD, OPEN_SETTINGS, SHOW_LOG, showProblem } from "./notify";
import type { Status } from "./presentation";
import { ProgressNotifications } from "./progress";
import { CURSOR_METHOD, STATUS_METHOD, parseServerStatus, type InitializationOptions, type ServerStatus } from "./protocol";
import { CrashBudget, coalesced, withTimeout } from "./restart";
import { resolveServerCommand, type RunnableCommand, type ServerCommand } from "./serverCommand";
import { SECTION, readClientSettings, readServerSettings, type ClientSettings } from "./settings";

const DOCUMENT_SCHEMES = ["file", "untitled", "vscode-notebook-cell", "vscode-remote"];
const START_TIMEOUT_MS = 30 * 1000;
const MAX_CRASHES = 3;
const CRASH_WINDOW_MS = 3 * 60 * 1000;

/** Every failure that the library would raise as a pop-up of its own, also for single requests, goes to the log. */
class QuietLanguageClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

export class MidlineClient implements Disposable {
  readonly #statusChanged = new EventEmitter<Status>();
  readonly #crashes = new CrashBudget(MAX_CRASHES, CRASH_WINDOW_MS);
  #connection: LanguageClient | undefined;
  #status: Status = { state: "stopped", model: "", message: "" };
  #isDownloadOffered = false;
  #isDisposed = false;

  /** Stops the server, then starts it as the settings say now. Never rejects; calls during a restart coalesce. */
  readonly restart: () => Promise<void> = coalesced(() => this.#restartOnce());
  readonly onDidChangeStatus: Event<Status> = this.#statusChanged.event;

  constructor(private readonly logger: Logger) {}

  get status(): Status {
    return this.#status;
  }

  /** Tells a running server what the settings say now. */
  async sendSettings(): Promise<void> {
    if (this.#connection?.isRunning()) {
      const settings = { [SECTION]: readServerSettings(workspace.getConfiguration(SECTION)) };
      await this.#connection.sendNotification(DidChangeConfigurationNotification.type, { settings });
    }
  }

  /** Tells a running server where the cursor rests, if that is a document of its kind. */
  async sendCursor({ document, selections }: TextEditor): Promise<void> {
    const [selection] = selections;
    const isOurs = DOCUMENT_SCHEMES.includes(document.uri.scheme);
    if (this.#status.state === "ready" && this.#connection?.isRunning() && isOurs && selection && selections.length === 1) {
      const uri = this.#connection.code2ProtocolConverter.asUri(document.uri);
      const { line, character } = selection.active;
      await this.#connection.sendNotification(CURSOR_METHOD, { textDocument: { uri }, position: { line, character } });
    }
  }

  /** The answer of a running server to one of its commands; rejects with the one line that it answers instead. */
  async execute(command: string, argument: object): Promise<unknown> {
    const connection = this.#connection;
    if (!connection?.isRunning()) {
      throw new Error(this.#status.state === "disabled" ? "it is turned off; turn completions on first" : "the server is not running");
    }
    try {
      return await connection.sendRequest(ExecuteCommandRequest.type, { command, arguments: [argument] });
    } catch (error) {
      throw connection.isRunning() ? error : new Error("the server has ended meanwhile; try again", { cause: error });
    }
  }

  /** Ends the server, for good. */
  async stop(): Promise<void> {
    this.#isDisposed = true;
    await this.#disconnect();
  }

  dispose(): void {
    void this.stop();
    this.#statusChanged.dispose();
  }

  async #restartOnce(): Promise<void> {
    await this.#disconnect();
    if (this.#isDisposed) {
      return;
    }
    const settings = readClientSettings(workspace.getConfiguration(SECTION));
    if (!settings.enabled) {
      this.#report({ state: "disabled", model: "", message: "" });
      return;
    }
    const command = findServerCommand(settings);
    if (command.kind === "missing") {
      this.#fail(command.reason);
    } else {
      await this.#connect(command);
    }
  }

  async #connect(command: RunnableCommand): Promise<void> {
    const args = [...command.args, "serve", "--stdio"];
    const commandLine = [command.program, ...args].join(" ");
    this.logger.info(`Starting ${commandLine}`);
    this.#report({ state: "starting", model: "", message: "" });
    // Not in the workspace: `python -m` would import the modules that lie there.
    const executable = { command: command.program, args, options: { cwd: homedir() } };
    const progress = new ProgressNotifications((token) => {
      void connection.sendNotification(WorkDoneProgressCancelNotification.type, { token });
    });
    const connection: LanguageClient = new QuietLanguageClient("midline", "Midline", executable, {
      ...clientOptions(this.logger, progress),
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue, handled: true }),
        closed: () => this.#onClosed(connection),
      },
    });
    connection.onDidChangeState(({ newState }) => {
      if (newState === State.Stopped) {
        progress.dispose();
      }
    });
    connection.onNotification(STATUS_METHOD, (params: unknown) => {
      const status = parseServerStatus(params);
      if (status && connection === this.#connection) {
        this.#onServerStatus(status);
      }
    });
    connection.onNotification(ShowMessageNotification.type, ({ message }) => {
      showProblem(message, [SHOW_LOG, OPEN_SETTINGS]);
    });
    this.#connection = connection;
    try {
      await withTimeout(connection.start(), START_TIMEOUT_MS);
    } catch (error) {
      if (connection === this.#connection) {
        await this.#disconnect();
        this.logger.error(messageOf(error));
        this.#fail(`the server did not start; the log says why. It was run as: ${commandLine}`);
      }
    }
  }

  async #disconnect(): Promise<void> {
    const connection = this.#connection;
    this.#connection = undefined;
    try {
      await connection?.dispose();
    } catch (error) {
      this.logger.debug(`While stopping the server: ${messageOf(error)}`);
    }
  }

  /** The library is never asked to restart: there is one way to do that. */
  #onClosed(connection: LanguageClient): CloseHandlerResult {
    if (connection === this.#connection && connection.isRunning()) {
      if (this.#crashes.allowsRestart(Date.now())) {
        // Not before the library has noted that the connection is gone; it would try to say goodbye.
        setImmediate(() => void this.restart());
      } else {
        this.#fail(`the server has ended ${MAX_CRASHES + 1} times within three minutes and is not started again.`);
      }
    }
    return { action: CloseAction.DoNotRestart, handled: true, message: "The server has ended." };
  }

  #onServerStatus(status: ServerStatus): void {
    this.#report(status);
    if (status.state === "model_missing" && !this.#isDownloadOffered) {
      this.#isDownloadOffered = true;
      showProblem(`Midline: ${status.message}`, [DOWNLOAD, SHOW_LOG]);
    }
  }

  #fail(reason: string): void {
    this.logger.error(reason);
    this.#report({ state: "failed", model: "", message: reason });
    showProblem(`Midline: ${reason}`, [SHOW_LOG, OPEN_SETTINGS]);
  }

  #report(status: Status): void {
    this.#status = status;
    this.#statusChanged.fire(status);
  }
}

function clientOptions(logger: Logger, progress: ProgressNotifications): LanguageClientOptions {
  const settings = readServerSettings(workspace.getConfiguration(SECTION));
  return {
    documentSelector: DOCUMENT_SCHEMES.map((scheme) => ({ scheme })),
    initializationOptions: { midline: { status: true, settings } } satisfies InitializationOptions,
    initializationFailedHandler: () => false,
    outputChannel: logger,
    revealOutputChannelOn: RevealOutputChannelOn.Never,
    middleware: {
      handleWorkDoneProgress: (token, value, next) => {
        progress.show(token, value);
        if (value.kind === "end") {
          next(token, value); // so that the library forgets what it would have shown itself
        }
      },
      provideInlineCompletionItems: (document, position, context, token, next) =>
        hasSeveralCursors(document) ? undefined : next(document, position, context, token),
    },
  };
}

/** Decides by the settings and by what is on this machine. */
export function findServerCommand({ command }: ClientSettings): ServerCommand {
  return resolveServerCommand(command, {
    workspaceFolders: (workspace.workspaceFolders ?? [])
      .filter(({ uri }) => uri.scheme === "file")
      .map(({ uri }) => uri.fsPath),
    isTrusted: workspace.isTrusted,
    searchPath: process.env["PATH"] ?? "",
    platform: process.platform,
    isExecutable,
  });
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
}

/** One suggestion cannot be meant for several places. */
function hasSeveralCursors(document: TextDocument): boolean {
  const editor = window.activeTextEditor;
  return editor?.document === document && editor.selections.length > 1;
}
