/** Bulk completion for a person: which kinds of holes, progress (the server's own), what came of it, apply or review. */

import { ProgressLocation, commands, window, workspace, type Disposable } from "vscode";
import { KINDS, applyProblem, describeApplied, describeReview, failures, kindChoices } from "./bulkText";
import type { MidlineClient } from "./client";
import { messageOf, type Logger } from "./logger";
import { SHOW_LOG, showNews, showProblem, type Action } from "./notify";
import {
  BULK_APPLY,
  BULK_REVIEW,
  BULK_SELECT,
  BULK_START,
  type BulkApplied,
  type BulkPlace,
  type BulkReview,
  type BulkSelection,
} from "./protocol";

const APPLY = "midline.bulk.apply"; // behind a button only
const REVIEW = "midline.bulk.review";

export function registerBulkCommands(client: MidlineClient, logger: Logger): Disposable[] {
  const bulk = new Bulk(client, logger);
  return [
    commands.registerCommand("midline.bulk.fillWorkspace", () => bulk.fill(pickFolder)),
    commands.registerCommand("midline.bulk.fillFile", () => bulk.fill(activeFile)),
    commands.registerCommand(REVIEW, (run?: number) => bulk.apply(true, run)),
    commands.registerCommand(APPLY, (run?: number) => bulk.apply(false, run)),
  ];
}

class Bulk {
  constructor(
    private readonly client: MidlineClient,
    private readonly logger: Logger,
  ) {}

  /** From the question what is to be filled to the offer to apply it. */
  async fill(choosePlace: () => Promise<BulkPlace | undefined>): Promise<void> {
    await this.#orShow(async () => {
      const place = await choosePlace();
      const kinds = place && (await this.#chooseKinds(place));
      if (kinds && kinds.length > 0) {
        await this.client.execute(BULK_START, { ...place, kinds });
        this.#offer((await this.client.execute(BULK_REVIEW, {})) as BulkReview);
      }
    });
  }

  /** `isReviewed`: the editor shows each change and asks. 0 is the last run. */
  async apply(isReviewed: boolean, run = 0): Promise<void> {
    await this.#orShow(async () => {
      const applied = (await this.client.execute(BULK_APPLY, { review: isReviewed, run })) as BulkApplied;
      applied.conflicts.forEach((conflict) => {
        this.logger.warn(conflict);
      });
      const problem = applyProblem(applied, isReviewed);
      if (problem) {
        showProblem(problem, [SHOW_LOG]);
      } else if (applied.applied && !isReviewed) {
        showNews(describeApplied(applied), []);
      }
    });
  }

  /** Undefined where the user wants nothing, or there is nothing. */
  async #chooseKinds(place: BulkPlace): Promise<string[] | undefined> {
    const looking = { location: ProgressLocation.Window, title: "Midline: looking for holes" };
    const asked = { ...place, kinds: Object.keys(KINDS) };
    const found = (await window.withProgress(looking, () => this.client.execute(BULK_SELECT, asked))) as BulkSelection;
    const choices = kindChoices(found);
    if (choices.length === 0) {
      showNews(`Midline: there are no holes to fill in ${found.num_files} files.`, []);
      return undefined;
    }
    const chosen = await window.showQuickPick(choices, {
      canPickMany: true,
      title: "Midline: Fill Holes",
      placeHolder: "What is to be filled?",
    });
    return chosen?.map(({ name }) => name);
  }

  #offer(review: BulkReview): void {
    failures(review).forEach((failure) => {
      this.logger.info(failure);
    });
    const toApply: Action[] = [
      { title: "Review…", command: REVIEW, arguments: [review.run] },
      { title: "Apply All", command: APPLY, arguments: [review.run] },
    ];
    const actions = [...(review.num_filled > 0 ? toApply : []), ...(review.num_failed > 0 ? [SHOW_LOG] : [])];
    showNews(describeReview(review), actions);
  }

  async #orShow(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.logger.error(messageOf(error));
      showProblem(`Midline: ${messageOf(error)}`, [SHOW_LOG]);
    }
  }
}

/** Asks where there are several; where there is none the server says so. */
async function pickFolder(): Promise<BulkPlace | undefined> {
  const folders = (workspace.workspaceFolders ?? []).filter(({ uri }) => uri.scheme === "file");
  if (folders.length <= 1) {
    return {};
  }
  const folder = await window.showWorkspaceFolderPick();
  return folder && { root: folder.uri.toString() };
}

function activeFile(): Promise<BulkPlace> {
  const editor = window.activeTextEditor;
  return editor
    ? Promise.resolve({ paths: [editor.document.uri.toString()] })
    : Promise.reject(new Error("no file is open; open the one whose holes are to be filled"));
}
