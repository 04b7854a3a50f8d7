/**
 * Reads the user's settings. Their names and defaults are those of `package.json`, which a test compares with the
 * server's; all but `CLIENT_ONLY` are passed on to the server untouched.
 */

import type { WorkspaceConfiguration } from "vscode";
import { contributes } from "../package.json";
import type { SettingsTree } from "./protocol";

export const SECTION = "midline";
const CLIENT_ONLY = ["command"];

/** The part of VS Code's configuration object that is used here. */
export type SettingsReader = Pick<WorkspaceConfiguration, "get" | "inspect">;

/** What this client itself acts on. */
export interface ClientSettings {
  readonly enabled: boolean;
  /** Program and leading arguments; empty where the setting is not a list of strings. */
  readonly command: readonly string[];
  readonly model: string;
}

export function readClientSettings(reader: SettingsReader): ClientSettings {
  const command = reader.get<unknown>("command");
  return {
    enabled: reader.get<unknown>("enabled") !== false,
    command: Array.isArray(command) && command.every((part) => typeof part === "string") ? command : [],
    model: String(reader.get<unknown>("engine.model")),
  };
}

/**
 * The server's settings that the user has set in any scope. Defaults are left out, so that they do not hide what the
 * user's own Midline config file says.
 */
export function readServerSettings(reader: SettingsReader): SettingsTree {
  const tree: SettingsTree = {};
  for (const key of serverKeys()) {
    if (isSet(reader, key)) {
      insert(tree, key.split("."), reader.get<unknown>(key));
    }
  }
  return tree;
}

/** Names of the server's settings, without the section. */
export function serverKeys(): string[] {
  return Object.keys(contributes.configuration.properties)
    .map((name) => name.slice(SECTION.length + 1))
    .filter((key) => !CLIENT_ONLY.includes(key));
}

function isSet(reader: SettingsReader, key: string): boolean {
  const found = reader.inspect<unknown>(key);
  const values = [found?.globalValue, found?.workspaceValue, found?.workspaceFolderValue];
  return values.some((value) => value !== undefined);
}

function insert(tree: SettingsTree, path: readonly string[], value: unknown): void {
  const [name = "", ...rest] = path;
  if (rest.length === 0) {
    tree[name] = value;
    return;
  }
  const branch = (tree[name] ?? {}) as SettingsTree;
  tree[name] = branch;
  insert(branch, rest, value);
}
