#!/usr/bin/env bash
# Installs what tests/e2e/test_vscode.py drives: the VS Code server of code-server 4.100.3 (the newest for Node 20) and
# playwright-core, which brings no browser: chromium comes from the system.
# usage: setup.sh [DIR]   DIR must lie outside the clone. Default: $MIDLINE_VSCODE_RIG or the user's cache folder.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
rig="${1:-${MIDLINE_VSCODE_RIG:-${XDG_CACHE_HOME:-$HOME/.cache}/midline-tests/vscode}}"
vscode="$rig/node_modules/code-server/lib/vscode"
stamp="$rig/installed"

if cmp -s "$here/package-lock.json" "$stamp"; then
  exit 0
fi
mkdir -p "$rig"
rm -f "$stamp"
cp "$here/package.json" "$here/package-lock.json" "$rig/"
# Without scripts: the native parts (terminal, keyring, search) need compilers and downloads, and no test uses them.
npm ci --prefix "$rig" --ignore-scripts --no-audit --no-fund
# The server's own dependencies, by the shrinkwrap file it ships; `npm ci` finds that file out of step and refuses.
npm install --prefix "$vscode" --ignore-scripts --omit=dev --no-audit --no-fund
ln -sfn node_modules "$vscode/node_modules.asar"
cp "$here/package-lock.json" "$stamp"
