/** Wiring only: builds the parts, connects them to the editor's events, takes them down. */

import { workspace, type ConfigurationChangeEvent, type ExtensionContext } from "vscode";
import { registerBulkCommands } from "./bulk";
import { MidlineClient } from "./client";
import { registerCommands } from "./commands";
import { watchCursor } from "./cursor";
import { createLogger } from "./logger";
import { SECTION } from "./settings";
import { createStatusItem } from "./status";

let client: MidlineClient | undefined;

export function activate(context: ExtensionContext): void {
  const logger = createLogger();
  const midline = new MidlineClient(logger);
  client = midline;
  context.subscriptions.push(
    logger,
    midline,
    ...createStatusItem(midline),
    ...registerCommands(midline, logger),
    ...registerBulkCommands(midline, logger),
    ...watchCursor(midline),
    workspace.onDidChangeConfiguration((event) => void onSettingsChanged(midline, event)),
    // The settings of the folder, and its own environment, count from now on.
    workspace.onDidGrantWorkspaceTrust(() => void midline.restart()),
  );
  void midline.restart();
}

/** Resolves when the server has ended. */
export function deactivate(): Promise<void> | undefined {
  return client?.stop();
}

async function onSettingsChanged(midline: MidlineClient, event: ConfigurationChangeEvent): Promise<void> {
  if (event.affectsConfiguration(`${SECTION}.command`) || event.affectsConfiguration(`${SECTION}.enabled`)) {
    await midline.restart();
  } else if (event.affectsConfiguration(SECTION)) {
    await midline.sendSettings();
  }
}
