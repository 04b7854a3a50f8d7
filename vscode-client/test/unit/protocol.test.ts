import assert from "node:assert/strict";
import { test } from "node:test";
import { parseServerStatus } from "../../src/protocol";

test("a status is read", () => {
  const status = { state: "model_missing", model: "small", message: "run a command" };
  assert.deepEqual(parseServerStatus(status), status);
});

test("what is missing or of a wrong type is empty", () => {
  assert.deepEqual(parseServerStatus({ state: "ready", model: null, extra: 1 }), { state: "ready", model: "", message: "" });
});

for (const params of [undefined, null, "ready", [], {}, { state: "disabled" }, { state: 3 }]) {
  test(`no status: ${JSON.stringify(params)}`, () => {
    assert.equal(parseServerStatus(params), undefined);
  });
}
