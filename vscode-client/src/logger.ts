/** The log that the user can open: ours, the server's standard error, and the protocol's messages at trace level. */

import { window, type LogOutputChannel } from "vscode";

export type Logger = LogOutputChannel;

export function createLogger(): Logger {
  return window.createOutputChannel("Midline", { log: true });
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
