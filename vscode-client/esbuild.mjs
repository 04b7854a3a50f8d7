// Bundles the extension into dist/, or with --tests the unit tests into out/test/.
import { readdirSync, rmSync } from "node:fs";
import { build } from "esbuild";

const common = {
  bundle: true,
  external: ["vscode"],
  format: "cjs",
  logLevel: "warning",
  platform: "node",
  sourcemap: true,
  target: "node20",
};

if (process.argv.includes("--tests")) {
  rmSync("out/test", { recursive: true, force: true });
  const entryPoints = readdirSync("test/unit").map((name) => `test/unit/${name}`);
  await build({ ...common, entryPoints, outdir: "out/test" });
} else {
  rmSync("dist", { recursive: true, force: true });
  await build({ ...common, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js", minify: true });
}
