#!/usr/bin/env bash
# The Dockerfile's steps without a Docker engine: an empty directory, a fresh virtual environment, the files that
# .dockerignore lets through, an install that is not editable, the same command, environment and health check.
# It does not prove the base images, the packages of apt-get or the user; PORT may be set.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d); trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$root"' EXIT
mkdir -p "$root/src" "$root/app/models"
cp -r "$source/pyproject.toml" "$source/README.md" "$source/server" "$root/src/"
python3 -m venv "$root/venv"
"$root/venv/bin/pip" install --quiet "$root/src"
cp -r "$source/config" "$root/app/"
cp "$source"/models/*.gguf "$root/app/models/"
rm -rf "$root/src"
cd "$root/app"
export LLAMA_ARG_HOST=127.0.0.1 LLAMA_ARG_PORT="${PORT:-8199}" PYTHONUNBUFFERED=1
env -u PYTHONPATH PATH="$root/venv/bin:$PATH" llamapool & server=$!
check=$(sed -n 's/^  CMD //p' "$source/Dockerfile" | python3 -c 'import json, sys; print(json.loads(sys.stdin.read())[2])')
for _ in $(seq 60); do python3 -c "$check" 2>/dev/null && break; kill -0 "$server"; sleep 0.5; done
python3 -c "$check"
curl -sS "http://127.0.0.1:$LLAMA_ARG_PORT/v1/chat/completions" -H 'content-type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 20}'
echo
kill -TERM "$server"; wait "$server" && status=0 || status=$?
echo "health check passed, a chat answered, SIGTERM ended it with status $status"
