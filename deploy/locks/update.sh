#!/usr/bin/env bash
# Writes the locks anew, with the newest versions that pyproject.toml allows, for Python 3.11 and later: server.txt is what the
# image installs, dev.txt what `make test` is held to, image.txt the tools that say what is in the image.
set -euo pipefail
cd "$(dirname "$0")/../.."
uv=${UV:-uv}  # pip install uv
compile() {
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
    --custom-compile-command deploy/locks/update.sh "$@"
}
compile pyproject.toml --output-file deploy/locks/server.txt
compile pyproject.toml --all-extras --output-file deploy/locks/dev.txt
printf 'cyclonedx-bom>=7,<8\npip-licenses>=5,<6\n' | compile - --output-file deploy/locks/image.txt
