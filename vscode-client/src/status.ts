/** The item in the status bar: shows the client's status; a click opens the menu. */

import { StatusBarAlignment, ThemeColor, window, type ExtensionContext } from "vscode";
import type { MidlineClient } from "./client";
import { describe, present, type Presentation, type Status } from "./presentation";

const BACKGROUNDS: Readonly<Record<Presentation["severity"], ThemeColor | undefined>> = {
  normal: undefined,
  warning: new ThemeColor("statusBarItem.warningBackground"),
  error: new ThemeColor("statusBarItem.errorBackground"),
};

export function createStatusItem(client: MidlineClient): ExtensionContext["subscriptions"] {
  const item = window.createStatusBarItem("status", StatusBarAlignment.Right, 100);
  item.name = "Midline";
  item.command = "midline.showStatus";
  const show = (status: Status): void => {
    const { icon, severity } = present(status.state);
    item.text = `$(${icon}) Midline`;
    item.tooltip = describe(status);
    item.accessibilityInformation = { label: describe(status) };
    item.backgroundColor = BACKGROUNDS[severity];
  };
  show(client.status);
  item.show();
  return [item, client.onDidChangeStatus(show)];
}
