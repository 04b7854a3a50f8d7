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
  const titles = actions.map((action) => action.title);
  void window.showWarningMessage(problem, ...titles).then((chosen) => {
    const action = actions.find(({ title }) => title === chosen);
    return action && commands.executeCommand(action.command, ...(action.arguments ?? []));
  });
}
