/** How a status looks, as plain data: no editor needed. */

import type { ServerStatus } from "./protocol";

/** The server's status, or that the user has turned Midline off. */
export type Status = Omit<ServerStatus, "state"> & { readonly state: ServerStatus["state"] | "disabled" };

export interface Presentation {
  readonly icon: string;
  readonly title: string;
  readonly severity: "normal" | "warning" | "error";
}

export interface MenuEntry {
  readonly label: string;
  readonly command: string;
}

const PRESENTATIONS: Readonly<Record<Status["state"], Presentation>> = {
  stopped: { icon: "circle-outline", title: "idle", severity: "normal" },
  starting: { icon: "loading~spin", title: "starting", severity: "normal" },
  loading: { icon: "loading~spin", title: "loading the model", severity: "normal" },
  ready: { icon: "sparkle", title: "ready", severity: "normal" },
  model_missing: { icon: "cloud-download", title: "model not downloaded", severity: "warning" },
  failed: { icon: "error", title: "failed", severity: "error" },
  disabled: { icon: "circle-slash", title: "off", severity: "normal" },
};

export function present(state: Status["state"]): Presentation {
  return PRESENTATIONS[state];
}

/** One line: the state, then what is known of model and reason. */
export function describe({ state, model, message }: Status): string {
  const details = [model, message].filter((part) => part !== "");
  return [`Midline: ${present(state).title}`, ...details].join(" · ");
}

const ENTRIES_WHILE_ON: readonly MenuEntry[] = [
  { label: "$(list-tree) Fill holes in the workspace…", command: "midline.bulk.fillWorkspace" },
  { label: "$(debug-restart) Restart", command: "midline.restart" },
];

export function menuEntries(state: Status["state"]): MenuEntry[] {
  return [
    ...(state === "model_missing" ? [{ label: "$(cloud-download) Download the model", command: "midline.downloadModel" }] : []),
    state === "disabled"
      ? { label: "$(play) Turn completions on", command: "midline.toggle" }
      : { label: "$(circle-slash) Turn completions off", command: "midline.toggle" },
    ...(state === "disabled" ? [] : ENTRIES_WHILE_ON),
    { label: "$(output) Show the log", command: "midline.showLog" },
  ];
}
