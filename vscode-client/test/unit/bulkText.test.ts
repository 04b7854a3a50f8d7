import assert from "node:assert/strict";
import { test } from "node:test";
import { applyProblem, describeApplied, describeReview, failures, kindChoices } from "../../src/bulkText";
import type { BulkApplied, BulkReview } from "../../src/protocol";

const REVIEW: BulkReview = {
  run: 1,
  state: "done",
  num_holes: 3,
  num_filled: 2,
  num_failed: 1,
  fills: [
    { file: "a.py", range: { start: { line: 4 } }, state: "filled", reason: "" },
    { file: "b.py", range: { start: { line: 0 } }, state: "failed", reason: "it does not parse" },
  ],
};
const APPLIED: BulkApplied = { applied: true, num_fills: 1, num_files: 1, reason: "", conflicts: [] };

test("only kinds of which there are any can be chosen, and documentation is not chosen for the user", () => {
  const choices = kindChoices({ num_files: 3, num_by_kind: { docstrings: 4, markers: 2, stubs: 1 } });
  assert.deepEqual(
    choices.map(({ label, name, picked }) => [label, name, picked]),
    [
      ["2 markers", "markers", true],
      ["1 stub", "stubs", true],
      ["4 docstrings", "docstrings", false],
    ],
  );
  assert.deepEqual(kindChoices({ num_files: 3, num_by_kind: {} }), []);
});

test("a run is told in one line", () => {
  assert.equal(describeReview(REVIEW), "Midline: 2 of 3 holes filled, 1 failed.");
  const cancelled = { ...REVIEW, state: "cancelled", num_holes: 1, num_filled: 0, num_failed: 0 } as const;
  assert.equal(describeReview(cancelled), "Midline: cancelled; 0 of 1 hole filled.");
});

test("the log names what was not filled, by lines as an editor counts them", () => {
  assert.deepEqual(failures(REVIEW), ["b.py:1: not filled: it does not parse"]);
});

test("what was applied is told", () => {
  assert.equal(describeApplied(APPLIED), "Midline: 1 hole in 1 file filled.");
  assert.equal(describeApplied({ ...APPLIED, num_fills: 5, num_files: 2 }), "Midline: 5 holes in 2 files filled.");
});

test("a conflict is a problem, whatever was applied beside it", () => {
  const one = { ...APPLIED, conflicts: ["a.py has changed"] };
  assert.equal(applyProblem(one, true), "Midline: a.py has changed.");
  const three = { ...APPLIED, conflicts: ["a.py has changed", "b.py", "c.py"] };
  assert.equal(applyProblem(three, false), "Midline: a.py has changed (and 2 files more, see the log).");
});

test("who rejects a review is not told of it, but an edit that failed is a problem", () => {
  const refused = { ...APPLIED, applied: false };
  assert.equal(applyProblem(APPLIED, false), "");
  assert.equal(applyProblem(refused, true), "");
  assert.match(applyProblem(refused, false), /did not take the fills for 1 file/);
  assert.equal(applyProblem({ ...refused, reason: "disk full" }, false), "Midline: disk full.");
});
