// Types into a VS Code workbench as a person would and reports what could be seen; judges nothing.
// usage: node drive.mjs '{"scenario", "rig", "browser", "url", "file", "state", "artifacts"}'  → one JSON object on stdout.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const { scenario, rig, browser: executablePath, url, file, state, artifacts } = JSON.parse(process.argv[2]);
const { chromium } = createRequire(path.join(rig, "package.json"))("playwright-core");

const STATUS_ITEM = '[id="midline.midline.status"]';
const ENGINE_START_MS = 150_000; // seconds where the machine is idle, but in CI it seldom is
const PATIENCE_MS = 10_000; // with a suggestion of a warm engine
const KEY_DELAY_MS = 40;

const report = { scenario, steps: [] };
const startedMs = Date.now();

function note(name, facts = {}) {
  report.steps.push({ name, at_s: (Date.now() - startedMs) / 1000, ...facts });
}

async function poll(question, deadlineMs, what) {
  const endMs = Date.now() + deadlineMs;
  for (;;) {
    const answer = await question();
    if (answer) {
      return answer;
    }
    if (Date.now() > endMs) {
      throw new Error(`not within ${deadlineMs} ms: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** What is drawn as ghost text within the line, in many pieces; empty when nothing is. */
function ghostText() {
  return page.evaluate(() =>
    [...document.querySelectorAll(".view-lines [class*='ghost-text']")]
      .map((element) => element.textContent.replaceAll("\u00a0", " "))
      .join("")
      .trimEnd(),
  );
}

/** Types; where nothing is suggested, for the engine was not ready, the last character once more when it is. */
async function typeUntilGhost(text) {
  const typedMs = Date.now();
  await page.keyboard.type(text, { delay: KEY_DELAY_MS });
  for (;;) {
    const ghost = await poll(ghostText, PATIENCE_MS, "ghost text").catch(() => "");
    if (ghost) {
      return { ghost, after_ms: Date.now() - typedMs };
    }
    await statusMatches(/ready/, ENGINE_START_MS);
    if (Date.now() - typedMs > ENGINE_START_MS) {
      throw new Error(`nothing is suggested after ${JSON.stringify(text)}`);
    }
    await page.keyboard.press("Backspace");
    await page.keyboard.type(text.at(-1), { delay: KEY_DELAY_MS });
  }
}

/** Every ghost text that is drawn at some time from now on. */
async function ghostsDuring(durationMs) {
  const seen = new Set();
  const endMs = Date.now() + durationMs;
  while (Date.now() < endMs) {
    seen.add(await ghostText());
    await page.waitForTimeout(50);
  }
  seen.delete("");
  return [...seen];
}

function popUps() {
  return page.locator(".notification-toast").allInnerTexts();
}

async function status() {
  return (await page.locator(STATUS_ITEM).first().getAttribute("aria-label", { timeout: 1000 }).catch(() => null)) ?? "";
}

async function save() {
  await page.keyboard.press("Control+s");
  await poll(async () => (await page.locator(".tab.active.dirty").count()) === 0, 10_000, "saved");
  return fs.readFileSync(file, "utf8");
}

async function screenshot(name) {
  await page.screenshot({ path: path.join(artifacts, `${scenario}-${name}.png`) });
}

async function runCommand(title) {
  await page.keyboard.press("F1");
  await page.locator(".quick-input-widget input").first().fill(`>${title}`);
  await page.locator(".quick-input-list .monaco-list-row.focused", { hasText: title }).waitFor();
  await page.keyboard.press("Enter");
}

function enginePids() {
  const folder = path.join(state, "services");
  return fs
    .readdirSync(folder)
    .filter((name) => name.endsWith(".json"))
    .map((name) => JSON.parse(fs.readFileSync(path.join(folder, name), "utf8")).pid);
}

async function openFile() {
  await page.goto(url, { waitUntil: "domcontentloaded" });
  const row = page.locator(".explorer-folders-view .monaco-list-row", { hasText: path.basename(file) });
  await row.dblclick({ timeout: 60_000 });
  await page.locator(".monaco-editor .view-lines").first().click({ timeout: 30_000 });
  note("opened");
}

/** Nothing is suggested before the extension host is up and has started the server. */
async function serverStarted() {
  await statusMatches(/idle|loading|ready|not downloaded/, 60_000);
  note("server started", { status: await status() });
}

function statusMatches(pattern, deadlineMs) {
  return poll(async () => pattern.test(await status()), deadlineMs, `a status like ${pattern}`);
}

/** Types at the end of line 6, with text below it, and accepts with Tab. */
async function acceptInTheMiddle() {
  await page.keyboard.press("Control+Home");
  for (let line = 1; line < 6; line++) {
    await page.keyboard.press("ArrowDown");
  }
  await page.keyboard.press("End");
  const shown = await typeUntilGhost(" ");
  await statusMatches(/ready/, 10_000);
  await screenshot("1-ghost-text");
  note("suggested", { ...shown, status: await status() });
  await page.keyboard.press("Tab");
  await poll(async () => (await ghostText()) !== shown.ghost, 5_000, "accepted");
  const text = await save();
  await screenshot("2-accepted");
  note("accepted", { text });
}

async function dismiss() {
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+End");
  const shown = await typeUntilGhost("\ntotal = ");
  await screenshot("3-before-escape");
  await page.keyboard.press("Escape");
  await poll(async () => (await ghostText()) === "", 5_000, "ghost text hidden");
  const ghostsAfter = await ghostsDuring(2_000);
  await screenshot("4-after-escape");
  note("dismissed", { ...shown, ghosts_after: ghostsAfter, text: await save() });
}

async function surviveEngine() {
  const killed = enginePids();
  killed.forEach((pid) => process.kill(pid, "SIGKILL"));
  const shown = await typeUntilGhost("0\nproduct = ");
  await statusMatches(/ready/, 10_000);
  await screenshot("5-after-engine-kill");
  note("suggested again", { ...shown, status: await status(), killed, running: enginePids() });
}

/** The language servers of this session, by their environment. */
function serverPids() {
  const read = (pid, name) => {
    try {
      return fs.readFileSync(`/proc/${pid}/${name}`, "utf8");
    } catch {
      return ""; // it has ended meanwhile
    }
  };
  return fs
    .readdirSync("/proc")
    .filter((pid) => read(pid, "cmdline").includes("\0serve\0") && read(pid, "environ").includes(state))
    .map(Number);
}

async function surviveServer() {
  await page.keyboard.press("Escape");
  const killed = serverPids();
  killed.forEach((pid) => process.kill(pid, "SIGKILL"));
  await poll(async () => serverPids().some((pid) => !killed.includes(pid)), 20_000, "another server");
  await statusMatches(/ready/, ENGINE_START_MS);
  const shown = await typeUntilGhost("0\nremainder = ");
  note("server restarted", { ...shown, killed, running: serverPids() });
}

async function turnOffAndOn() {
  await page.keyboard.press("Escape");
  await runCommand("Midline: Turn Completions On or Off");
  await statusMatches(/off/, 10_000);
  await page.keyboard.type("0\nquotient = ", { delay: KEY_DELAY_MS });
  const ghosts = await ghostsDuring(2_000);
  note("off", { status: await status(), ghosts, servers: serverPids() });
  await runCommand("Midline: Turn Completions On or Off");
  await statusMatches(/ready/, ENGINE_START_MS);
  note("on", await typeUntilGhost("0\ndifference = "));
}

/** The editor has closed both brackets by itself: what is accepted stands between them. */
async function acceptBetweenBrackets() {
  await page.keyboard.press("Escape");
  const shown = await typeUntilGhost("0\nprint(multiply(");
  await screenshot("6-between-brackets");
  await page.keyboard.press("Tab");
  await poll(async () => (await ghostText()) !== shown.ghost, 5_000, "accepted");
  note("accepted between brackets", { ...shown, text: await save() });
}

/** One pop-up with its remedies, and none more for typing. */
async function reportProblem(pattern) {
  await page.keyboard.press("Control+End");
  await page.keyboard.type("total = ", { delay: KEY_DELAY_MS });
  await statusMatches(pattern, 60_000);
  await page.keyboard.type("add(", { delay: KEY_DELAY_MS });
  await page.waitForTimeout(1_000); // long enough for a pop-up that should not come
  await screenshot("1-problem");
  note("problem", { status: await status(), ghost: await ghostText(), pop_ups: await popUps() });
}

/** Which log opens; its text is not drawn, for want of the server's native parts. */
async function showLog() {
  await page.locator(".notification-toast").getByText("Show Log").click();
  await page.locator(".output-view").waitFor({ timeout: 10_000 });
  const channel = page.locator(".part.panel .title select");
  const shown = () => channel.evaluate((select) => select.options[select.selectedIndex]?.text).catch(() => "");
  await poll(async () => (await shown()) === "Midline", 10_000, "the log of Midline").catch(() => undefined);
  await screenshot("2-log");
  note("log", { channel: await shown(), pop_ups: await popUps() });
}

/** The list of kinds as it is offered; Enter takes what is ticked. */
async function chooseHoles() {
  await runCommand("Midline: Fill Holes in Workspace…");
  const rows = page.locator(".quick-input-widget .quick-input-list .monaco-list-row", { hasText: /\d (marker|stub|docstring)/ });
  await rows.first().waitFor({ timeout: 30_000 });
  const kinds = await rows.evaluateAll((found) =>
    found.map((row) => ({ text: row.innerText.replaceAll("\n", " "), ticked: row.querySelector("[aria-checked=true], input:checked") !== null })),
  );
  await screenshot("1-kinds");
  note("kinds", { kinds });
  await page.keyboard.press("Enter");
}

function toast(text) {
  return page.locator(".notification-toast", { hasText: text });
}

async function progressShown() {
  const progress = toast("Midline: filling holes");
  await progress.waitFor({ timeout: 30_000 });
  await page.waitForTimeout(500); // it unfolds
  await screenshot("2-progress");
  note("progress", { text: await progress.innerText(), buttons: await progress.locator(".monaco-button").allInnerTexts() });
  return progress;
}

/** The summary with its buttons. */
async function filled() {
  await toast(/holes filled/).waitFor({ timeout: ENGINE_START_MS });
  await page.waitForTimeout(500);
  await screenshot("3-filled");
  note("filled", { pop_ups: await popUps(), text: fs.readFileSync(file, "utf8") });
}

/** The editor's own preview of all changes: everything is ticked, then applied. */
async function reviewAll() {
  await toast(/holes filled/).locator(".monaco-button", { hasText: "Review" }).click();
  const panel = page.locator(".bulk-edit-panel");
  await panel.waitFor({ timeout: 30_000 });
  await page.waitForTimeout(500);
  await screenshot("4-preview");
  const boxes = panel.locator(".monaco-list-row input[type=checkbox]");
  const before = await boxes.evaluateAll((found) => found.map(({ checked }) => checked));
  // ticking a file ticks its changes, and the other way round, some time later: they settle before the next click
  const unticked = panel.locator(".monaco-list-row input[type=checkbox]:not(:checked)");
  await poll(async () => {
    if ((await unticked.count()) === 0) return true;
    await unticked.last().click();
    await page.waitForTimeout(300);
    return false;
  }, 10_000, "everything ticked");
  await screenshot("5-ticked");
  note("preview", { before, rows: await panel.locator(".monaco-list-row").allInnerTexts(), text: fs.readFileSync(file, "utf8") });
  await panel.locator(".monaco-button", { hasText: "Apply" }).click();
  await panel.waitFor({ state: "hidden", timeout: 10_000 });
}

/** Once something is filled. */
async function cancelled(progress) {
  await poll(async () => /: [1-9]\d* of /.test(await progress.innerText()), 30_000, "something filled");
  await progress.locator(".monaco-button", { hasText: "Cancel" }).click();
  await toast(/cancelled/).waitFor({ timeout: 30_000 });
  await progress.waitFor({ state: "hidden", timeout: 10_000 });
  await page.waitForTimeout(500);
  await screenshot("3-cancelled");
  note("cancelled", { pop_ups: await popUps() });
}

/** The server is gone: so is its progress, and one pop-up says so. */
async function serverKilledWhileFilling(progress) {
  serverPids().forEach((pid) => process.kill(pid, "SIGKILL"));
  await progress.waitFor({ state: "hidden", timeout: 10_000 });
  await poll(async () => (await popUps()).length > 0, 10_000, "a pop-up");
  await statusMatches(/ready/, ENGINE_START_MS);
  await screenshot("3-server-killed");
  note("server killed", { pop_ups: await popUps() });
  await page.keyboard.press("Escape");
}

const SCENARIOS = {
  async bulk() {
    await serverStarted();
    await chooseHoles();
    await progressShown();
    await filled();
    await reviewAll();
    await poll(() => !fs.readFileSync(file, "utf8").includes("<FILL>"), 10_000, "applied").catch(() => undefined);
    await screenshot("6-applied");
    note("applied", { text: await save(), pop_ups: await popUps() });
  },
  async bulk_cancel() {
    await serverStarted();
    await chooseHoles();
    await cancelled(await progressShown());
    await toast(/cancelled/).locator(".monaco-button", { hasText: "Apply All" }).click();
    await toast(/ in .* filled/).waitFor({ timeout: 10_000 });
    await screenshot("4-applied");
    note("applied", { text: await save(), pop_ups: await popUps() });
  },
  async bulk_killed() {
    await serverStarted();
    await chooseHoles();
    await serverKilledWhileFilling(await progressShown());
  },
  async complete() {
    await serverStarted();
    await acceptInTheMiddle();
    await dismiss();
    await surviveEngine();
    await surviveServer();
    await turnOffAndOn();
    await acceptBetweenBrackets();
  },
  async no_server() {
    await reportProblem(/failed/);
  },
  async no_program() {
    await reportProblem(/failed/);
    await showLog();
  },
  async no_model() {
    await serverStarted();
    await reportProblem(/not downloaded/);
  },
};

const browser = await chromium.launch({
  executablePath,
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage({ viewport: { width: 1200, height: 700 } });
try {
  await openFile();
  await SCENARIOS[scenario]();
} catch (error) {
  report.error = error.message;
  report.status = await status();
  await screenshot("failed");
} finally {
  report.pop_ups = await popUps();
  await browser.close();
}
process.stdout.write(JSON.stringify(report));
