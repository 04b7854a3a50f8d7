/** What the user reads about bulk completion, as plain data: no editor needed. */

import type { BulkApplied, BulkReview, BulkSelection } from "./protocol";

export interface KindChoice {
  readonly label: string;
  readonly description: string;
  readonly name: string;
  readonly picked: boolean;
}

/** The kinds that are looked for, with what they are. */
export const KINDS: Readonly<Record<string, string>> = {
  markers: "places marked <FILL>",
  stubs: "functions without a body",
  docstrings: "missing documentation",
};
const NOT_ASKED_FOR = "docstrings"; // nobody has left a gap there on purpose

/** Only kinds of which there are any. */
export function kindChoices({ num_by_kind }: BulkSelection): KindChoice[] {
  return Object.keys(KINDS)
    .map((name) => ({ name, count: num_by_kind[name] ?? 0 }))
    .filter(({ count }) => count > 0)
    .map(({ name, count }) => ({
      label: counted(count, name.replace(/s$/, "")),
      description: KINDS[name] ?? "",
      name,
      picked: name !== NOT_ASKED_FOR,
    }));
}

export function describeReview({ state, num_holes, num_filled, num_failed }: BulkReview): string {
  const failed = num_failed > 0 ? `, ${num_failed} failed` : "";
  return `Midline: ${state === "cancelled" ? "cancelled; " : ""}${num_filled} of ${counted(num_holes, "hole")} filled${failed}.`;
}

/** One line for each hole that was not filled. */
export function failures({ fills }: BulkReview): string[] {
  return fills
    .filter(({ state }) => state === "failed")
    .map(({ file, range, reason }) => `${file}:${range.start.line + 1}: not filled: ${reason}`);
}

/** What must be said after fills were to be applied; nothing where the user has decided, and sees it. */
export function applyProblem({ applied, reason, num_files, conflicts }: BulkApplied, isReviewed: boolean): string {
  const [first, ...others] = conflicts;
  if (first !== undefined) {
    return `Midline: ${first}${others.length > 0 ? ` (and ${counted(others.length, "file")} more, see the log)` : ""}.`;
  }
  if (applied || isReviewed) {
    return "";
  }
  return `Midline: ${reason || `the editor did not take the fills for ${counted(num_files, "file")}; they have changed just now`}.`;
}

export function describeApplied({ num_fills, num_files }: BulkApplied): string {
  return `Midline: ${counted(num_fills, "hole")} in ${counted(num_files, "file")} filled.`;
}

function counted(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
