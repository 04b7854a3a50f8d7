import assert from "node:assert/strict";
import { test } from "node:test";
import { CrashBudget, coalesced, withTimeout } from "../../src/restart";

/** Work whose runs are ended one by one by the test. */
function manualWork(): { work: () => Promise<void>; ends: (() => void)[] } {
  const ends: (() => void)[] = [];
  const work = (): Promise<void> => new Promise((resolve) => ends.push(resolve));
  return { work, ends };
}

function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

test("calls during a run are answered by one further run", async () => {
  const { work, ends } = manualWork();
  const restart = coalesced(work);
  const first = restart();
  const others = [restart(), restart(), restart()];
  assert.equal(ends.length, 1);
  ends[0]?.();
  await first;
  await settled();
  assert.equal(ends.length, 2);
  ends[1]?.();
  await Promise.all(others);
  await settled();
  assert.equal(ends.length, 2);
});

test("a call during the second run begins a third after it", async () => {
  const { work, ends } = manualWork();
  const restart = coalesced(work);
  void restart();
  void restart();
  ends[0]?.();
  await settled();
  const third = restart();
  assert.equal(ends.length, 2);
  ends[1]?.();
  await settled();
  assert.equal(ends.length, 3);
  ends[2]?.();
  await third;
});

test("a failed run does not block the next", async () => {
  let runs = 0;
  const restart = coalesced(() => (++runs === 1 ? Promise.reject(new Error("no")) : Promise.resolve()));
  const [first, second] = await Promise.allSettled([restart(), restart()]);
  assert.deepEqual([first.status, second.status, runs], ["rejected", "fulfilled", 2]);
  await restart();
  assert.equal(runs, 3);
});

test("a server may crash three times in a window, not four", () => {
  const budget = new CrashBudget(3, 1000);
  assert.deepEqual([0, 100, 200, 300].map((timeMs) => budget.allowsRestart(timeMs)), [true, true, true, false]);
});

test("old crashes are forgotten", () => {
  const budget = new CrashBudget(3, 1000);
  assert.ok([0, 500, 1000, 1500, 2000, 2500].every((timeMs) => budget.allowsRestart(timeMs)));
});

test("a promise that settles in time passes through", async () => {
  assert.equal(await withTimeout(Promise.resolve(7), 10_000), 7);
  await assert.rejects(withTimeout(Promise.reject(new Error("own reason")), 10_000), /own reason/);
});

test("a promise that does not settle is given up", async () => {
  await assert.rejects(withTimeout(new Promise(() => undefined), 10), /within 0\.01 s/);
});
