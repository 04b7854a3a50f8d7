import assert from "node:assert/strict";
import { test } from "node:test";
import { contributes } from "../../package.json";
import { readClientSettings, readServerSettings, serverKeys, type SettingsReader } from "../../src/settings";

/** VS Code's configuration of one section: the defaults of `package.json` under what is set in one scope. */
function reader(values: Record<string, unknown>, scope = "globalValue"): SettingsReader {
  const defaults: Record<string, { default?: unknown }> = contributes.configuration.properties;
  return {
    get: (key: string) => (key in values ? values[key] : defaults[`midline.${key}`]?.default),
    inspect: (key: string) => ({ key, ...(key in values ? { [scope]: values[key] } : {}) }),
  } as SettingsReader;
}

test("nothing is sent to the server where the user has set nothing", () => {
  assert.deepEqual(readServerSettings(reader({})), {});
});

test("what the user has set is sent as the server's tree", () => {
  const values = { "completion.debounce_ms": 0, "completion.multiline": "never", "engine.num_threads": 2, enabled: true };
  assert.deepEqual(readServerSettings(reader(values)), {
    enabled: true,
    completion: { debounce_ms: 0, multiline: "never" },
    engine: { num_threads: 2 },
  });
});

for (const scope of ["globalValue", "workspaceValue", "workspaceFolderValue"]) {
  test(`a value set as ${scope} counts as set`, () => {
    assert.deepEqual(readServerSettings(reader({ enabled: false }, scope)), { enabled: false });
  });
}

test("which program to run is no business of the server's", () => {
  assert.ok(!serverKeys().includes("command"));
  assert.deepEqual(readServerSettings(reader({ command: ["/opt/midline"] })), {});
});

test("the client's own settings have their defaults", () => {
  assert.deepEqual(readClientSettings(reader({})), {
    enabled: true,
    command: ["midline"],
    model: contributes.configuration.properties["midline.engine.model"].default,
  });
});

for (const command of ["midline serve", ["midline", 3], null, {}]) {
  test(`a command that is no list of strings is empty: ${JSON.stringify(command)}`, () => {
    assert.deepEqual(readClientSettings(reader({ command })).command, []);
  });
}
