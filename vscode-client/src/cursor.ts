/**
 * Tells the server where the cursor has come to rest, so that it can have that place's prompt ready. LSP has no such
 * message; what the server does with it is in its settings (`completion.idle_work`).
 */

import { Disposable, window, workspace, type TextEditor } from "vscode";
import type { MidlineClient } from "./client";
import { SECTION } from "./settings";

const REST_MS = 200;

export function watchCursor(client: MidlineClient): Disposable[] {
  let timer: NodeJS.Timeout | undefined;
  const report = (editor: TextEditor | undefined): void => {
    clearTimeout(timer);
    timer = editor && isWanted() ? setTimeout(() => void client.sendCursor(editor), REST_MS) : undefined;
  };
  return [
    window.onDidChangeTextEditorSelection(({ textEditor }) => {
      report(textEditor);
    }),
    window.onDidChangeActiveTextEditor(report),
    new Disposable(() => {
      clearTimeout(timer);
    }),
  ];
}

function isWanted(): boolean {
  return workspace.getConfiguration(SECTION).get<string>("completion.idle_work") !== "off";
}
