/** The palette's commands. */

import { homedir } from "node:os";
import { ConfigurationTarget, commands, window, workspace, type Disposable } from "vscode";
import { findServerCommand, type MidlineClient } from "./client";
import type { Logger } from "./logger";
import { OPEN_SETTINGS, SHOW_LOG, showProblem } from "./notify";
import { describe, menuEntries } from "./presentation";
import { SECTION, readClientSettings } from "./settings";

export function registerCommands(client: MidlineClient, logger: Logger): Disposable[] {
  return [
    commands.registerCommand("midline.restart", () => client.restart()),
    commands.registerCommand("midline.showLog", () => {
      logger.show();
    }),
    commands.registerCommand("midline.showStatus", () => showMenu(client)),
    commands.registerCommand("midline.toggle", toggle),
    commands.registerCommand("midline.downloadModel", () => {
      downloadModel(client);
    }),
  ];
}

async function showMenu(client: MidlineClient): Promise<void> {
  const title = describe(client.status);
  const chosen = await window.showQuickPick(menuEntries(client.status.state), { title, placeHolder: title });
  if (chosen) {
    await commands.executeCommand(chosen.command);
  }
}

/** Changes the value where it is decided: in the workspace if that has one of its own, else for the user. */
async function toggle(): Promise<void> {
  const configuration = workspace.getConfiguration(SECTION);
  const isOfWorkspace = configuration.inspect<boolean>("enabled")?.workspaceValue !== undefined;
  const target = isOfWorkspace ? ConfigurationTarget.Workspace : ConfigurationTarget.Global;
  await configuration.update("enabled", !readClientSettings(configuration).enabled, target);
}

/** Runs `midline models pull` where the user sees its progress, then lets the server look again. */
function downloadModel(client: MidlineClient): void {
  const settings = readClientSettings(workspace.getConfiguration(SECTION));
  const command = findServerCommand(settings);
  if (command.kind === "missing") {
    showProblem(`Midline: ${command.reason}`, [SHOW_LOG, OPEN_SETTINGS]);
    return;
  }
  const model = client.status.model || settings.model;
  const terminal = window.createTerminal({
    name: `Midline: ${model}`,
    cwd: homedir(),
    shellPath: command.program,
    shellArgs: [...command.args, "models", "pull", model],
  });
  terminal.show();
  const closing = window.onDidCloseTerminal((closed) => {
    if (closed === terminal) {
      closing.dispose();
      void client.restart();
    }
  });
}
