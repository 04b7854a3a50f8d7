/**
 * Decides which program to run. Knows no editor: what it needs to know of one comes as `Surroundings`.
 *
 * 1. `midline.command`, if the user has set it: an absolute path, a path relative to a workspace folder, or a name on
 *    `PATH`. If it is not there, that is an error: nothing else is run in its place.
 * 2. `midline` on `PATH`.
 * 3. `.venv/bin/midline` in a workspace folder, only if the workspace is trusted.
 */

import * as path from "node:path";

export type ServerCommand =
  | { readonly kind: "configured" | "found"; readonly program: string; readonly args: readonly string[] }
  | { readonly kind: "missing"; readonly reason: string };

export type RunnableCommand = Exclude<ServerCommand, { kind: "missing" }>;

export interface Surroundings {
  readonly workspaceFolders: readonly string[];
  readonly isTrusted: boolean;
  /** The value of `PATH`. */
  readonly searchPath: string;
  readonly platform: NodeJS.Platform;
  readonly isExecutable: (file: string) => boolean;
}

const DEFAULT_PROGRAM = "midline";

export function resolveServerCommand(command: readonly string[], surroundings: Surroundings): ServerCommand {
  const [program, ...args] = command;
  if (!program) {
    return { kind: "missing", reason: "the setting midline.command must be a list of strings, the program first." };
  }
  if (program === DEFAULT_PROGRAM && args.length === 0) {
    return findDefault(surroundings);
  }
  const found = candidates(program, surroundings).find(surroundings.isExecutable);
  return found
    ? { kind: "configured", program: found, args }
    : { kind: "missing", reason: `the setting midline.command names "${program}", which is not an executable file.` };
}

function findDefault(surroundings: Surroundings): ServerCommand {
  const { isTrusted, platform, workspaceFolders } = surroundings;
  const scripts = platform === "win32" ? "Scripts" : "bin";
  const environments = isTrusted ? workspaceFolders.map((folder) => path.join(folder, ".venv", scripts)) : [];
  const found = [
    ...candidates(DEFAULT_PROGRAM, surroundings),
    ...environments.flatMap((folder) => withSuffixes(path.join(folder, DEFAULT_PROGRAM), platform)),
  ].find(surroundings.isExecutable);
  return found
    ? { kind: "found", program: found, args: [] }
    : {
        kind: "missing",
        reason: "the program midline was not found on PATH. Install it, or name it in the setting midline.command.",
      };
}

function candidates(program: string, { searchPath, workspaceFolders, platform }: Surroundings): string[] {
  const isBareName = !/[/\\]/.test(program);
  // An empty entry of PATH means the current folder; programs are never taken from there.
  const folders = isBareName ? searchPath.split(path.delimiter).filter((folder) => folder !== "") : workspaceFolders;
  const files = path.isAbsolute(program) ? [program] : folders.map((folder) => path.join(folder, program));
  return files.flatMap((file) => withSuffixes(file, platform));
}

function withSuffixes(file: string, platform: NodeJS.Platform): string[] {
  return platform === "win32" ? [file, `${file}.exe`] : [file];
}
