#!/usr/bin/env bash
# Write the locks with the newest versions that pyproject.toml allows, for Python 3.11 and later. The image installs server.txt,
# which includes the extras mcp and redis. `make test` uses dev.txt. image.txt has the tools that write the image's inventory.
set -euo pipefail
cd "$(dirname "$0")/../.."
uv=${UV:-uv}  # pip install uv
compile() {
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
    --custom-compile-command deploy/locks/update.sh "$@"
}
compile pyproject.toml --extra mcp --extra redis --output-file deploy/locks/server.txt
compile pyproject.toml --all-extras --output-file deploy/locks/dev.txt
printf 'cyclonedx-bom>=7,<8\npip-licenses>=5,<6\n' | compile - --output-file deploy/locks/image.txt
