import assert from "node:assert/strict";
import { test } from "node:test";
import { resolveServerCommand, type Surroundings } from "../../src/serverCommand";

function surroundings(files: readonly string[], changes: Partial<Surroundings> = {}): Surroundings {
  return {
    workspaceFolders: ["/project"],
    isTrusted: true,
    searchPath: "/usr/bin:/opt/bin",
    platform: "linux",
    isExecutable: (file) => files.includes(file),
    ...changes,
  };
}

test("the default is found on PATH, in its order", () => {
  const command = resolveServerCommand(["midline"], surroundings(["/opt/bin/midline", "/usr/bin/midline"]));
  assert.deepEqual(command, { kind: "found", program: "/usr/bin/midline", args: [] });
});

test("PATH comes before the workspace's environment", () => {
  const command = resolveServerCommand(["midline"], surroundings(["/project/.venv/bin/midline", "/opt/bin/midline"]));
  assert.deepEqual(command, { kind: "found", program: "/opt/bin/midline", args: [] });
});

test("a trusted workspace's environment is the fallback", () => {
  const command = resolveServerCommand(["midline"], surroundings(["/project/.venv/bin/midline"]));
  assert.deepEqual(command, { kind: "found", program: "/project/.venv/bin/midline", args: [] });
});

test("an untrusted workspace's environment is never run", () => {
  const untrusted = surroundings(["/project/.venv/bin/midline"], { isTrusted: false });
  assert.equal(resolveServerCommand(["midline"], untrusted).kind, "missing");
});

test("an empty entry of PATH does not mean the current folder", () => {
  const command = resolveServerCommand(["midline"], surroundings(["midline"], { searchPath: ":/usr/bin:" }));
  assert.equal(command.kind, "missing");
});

test("a configured program keeps its arguments", () => {
  const command = resolveServerCommand(["/py/python", "-m", "lsp_server"], surroundings(["/py/python"]));
  assert.deepEqual(command, { kind: "configured", program: "/py/python", args: ["-m", "lsp_server"] });
});

test("a configured program that is not there is named, and not replaced by the default", () => {
  const command = resolveServerCommand(["/gone/midline"], surroundings(["/usr/bin/midline"]));
  assert.equal(command.kind, "missing");
  assert.match(command.reason, /"\/gone\/midline"/);
});

test("a relative path is taken from the workspace folders", () => {
  const command = resolveServerCommand(["env/bin/midline"], surroundings(["/project/env/bin/midline"]));
  assert.deepEqual(command, { kind: "configured", program: "/project/env/bin/midline", args: [] });
});

test("on Windows the suffix may be left out", () => {
  const windows = surroundings(["/project/.venv/Scripts/midline.exe"], { platform: "win32" });
  const command = resolveServerCommand(["midline"], windows);
  assert.deepEqual(command, { kind: "found", program: "/project/.venv/Scripts/midline.exe", args: [] });
});

test("an empty command is an error that names the setting", () => {
  const command = resolveServerCommand([], surroundings(["/usr/bin/midline"]));
  assert.equal(command.kind, "missing");
  assert.match(command.reason, /midline\.command/);
});
