#!/usr/bin/env bash
# Checks the types of the page's modules: TypeScript reads their JSDoc. Run in a folder where package.json is installed.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
rm -rf static
mkdir -p static
cp -r "$here/../../server/web/static/app" static/app
cp -r "$here/types" static/vendor # declarations in the place of third-party modules
cp "$here/tsconfig.json" .
exec node_modules/.bin/tsc -p .
