/**
 * What the server and this client say to each other beyond LSP. Mirrors the server's side; knows no editor.
 */

/** Notification from the server: the state of its engine. Sent because `InitializationOptions` asks for it. */
export const STATUS_METHOD = "midline/status";

/** Notification to the server: where the cursor rests; a text document and a position, as of a hover. */
export const CURSOR_METHOD = "midline/didMoveCursor";

/** The server's commands for bulk completion. VS Code knows them by these names too, so that ours have others. */
export const BULK_SELECT = "midline.server.bulk.select";
export const BULK_START = "midline.server.bulk.start";
export const BULK_REVIEW = "midline.server.bulk.review";
export const BULK_APPLY = "midline.server.bulk.apply";

/** Where holes are looked for: URIs. */
export interface BulkPlace {
  readonly root?: string;
  readonly paths?: readonly string[];
}

export interface BulkSelection {
  readonly num_files: number;
  readonly num_by_kind: Readonly<Record<string, number>>;
}

export interface BulkFill {
  readonly file: string;
  readonly range: { readonly start: { readonly line: number } };
  readonly state: "filled" | "failed";
  /** One line; empty when filled. */
  readonly reason: string;
}

export interface BulkReview {
  readonly run: number;
  readonly state: "done" | "cancelled";
  readonly num_holes: number;
  readonly num_filled: number;
  readonly num_failed: number;
  readonly fills: readonly BulkFill[];
}

export interface BulkApplied {
  readonly applied: boolean;
  readonly num_fills: number;
  readonly num_files: number;
  readonly reason: string;
  /** Of files that were left alone, one line each. */
  readonly conflicts: readonly string[];
}

const SERVER_STATES = ["stopped", "starting", "loading", "ready", "model_missing", "failed"] as const;
export type ServerState = (typeof SERVER_STATES)[number];

/** `model` and `message` are empty when there is nothing to say. */
export interface ServerStatus {
  readonly state: ServerState;
  readonly model: string;
  readonly message: string;
}

/** Settings by nested name, as in the server's own tree; only what the user has set. */
export type SettingsTree = Record<string, unknown>;

export interface InitializationOptions {
  readonly midline: { readonly status: true; readonly settings: SettingsTree };
}

/** The status in a notification's parameters, or undefined where they are not one. */
export function parseServerStatus(params: unknown): ServerStatus | undefined {
  if (typeof params !== "object" || params === null || !("state" in params)) {
    return undefined;
  }
  const state = SERVER_STATES.find((known) => known === params.state);
  return state && { state, model: textOf(params, "model"), message: textOf(params, "message") };
}

function textOf(params: object, name: string): string {
  const value: unknown = Reflect.get(params, name);
  return typeof value === "string" ? value : "";
}
