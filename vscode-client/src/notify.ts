/** The one place that raises a pop-up. Never called from the path of a keystroke. */

import { commands, window } from "vscode";

export interface Action {
  readonly title: string;
  readonly command: string;
  readonly arguments?: readonly unknown[];
}

export const SHOW_LOG: Action = { title: "Show Log", command: "midline.showLog" };
export const OPEN_SETTINGS: Action = {
  title: "Open Settings",
  command: "workbench.action.openSettings",
  arguments: ["@ext:midline.midline"],
};
export const DOWNLOAD: Action = { title: "Download", command: "midline.downloadModel" };

/** Shows the problem, which names Midline, with its remedies as buttons; returns at once. */
export function showProblem(problem: string, actions: readonly Action[]): void {
  void window.showWarningMessage(problem, ...titles(actions)).then((chosen) => run(actions, chosen));
}

/** Shows what the user has waited for, with what can be done about it as buttons; returns at once. */
export function showNews(news: string, actions: readonly Action[]): void {
  void window.showInformationMessage(news, ...titles(actions)).then((chosen) => run(actions, chosen));
}

function titles(actions: readonly Action[]): string[] {
  return actions.map(({ title }) => title);
}

function run(actions: readonly Action[], chosen: string | undefined): Thenable<unknown> | undefined {
  const action = actions.find(({ title }) => title === chosen);
  return action && commands.executeCommand(action.command, ...(action.arguments ?? []));
}
