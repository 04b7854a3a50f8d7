import assert from "node:assert/strict";
import { test } from "node:test";
import { contributes } from "../../package.json";
import { describe, menuEntries, present, type Status } from "../../src/presentation";

const STATES: Status["state"][] = ["stopped", "starting", "loading", "ready", "model_missing", "failed", "disabled"];

test("a status is described with what is known of it", () => {
  assert.equal(describe({ state: "ready", model: "small", message: "" }), "Midline: ready · small");
  assert.equal(describe({ state: "failed", model: "", message: "no server" }), "Midline: failed · no server");
  assert.equal(describe({ state: "disabled", model: "", message: "" }), "Midline: off");
});

test("only what needs the user stands out", () => {
  const outstanding = STATES.filter((state) => present(state).severity !== "normal");
  assert.deepEqual(outstanding, ["model_missing", "failed"]);
});

test("the menu offers what helps in the state", () => {
  const offered = (state: Status["state"]): string[] => menuEntries(state).map(({ command }) => command);
  assert.deepEqual(offered("ready"), ["midline.toggle", "midline.bulk.fillWorkspace", "midline.restart", "midline.showLog"]);
  assert.equal(offered("model_missing")[0], "midline.downloadModel");
  assert.deepEqual(offered("disabled"), ["midline.toggle", "midline.showLog"]);
});

test("every entry of the menu is a command of the palette", () => {
  const known = contributes.commands.map(({ command }) => command);
  for (const state of STATES) {
    assert.deepEqual(menuEntries(state).filter(({ command }) => !known.includes(command)), []);
  }
});
