#!/usr/bin/env bash
# The Dockerfile's steps without a Docker engine: the files that .dockerignore lets through, the commands of its first stage in
# a fresh virtual environment (locked versions by their hashes, the package, the inventory), an empty directory for the
# second, the same command, environment and health check. It does not prove the base images, the packages of
# apt-get or the user; PORT may be set. llama-cpp-python comes out of pip's cache, where it was compiled for this machine.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d); trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$root"' EXIT
mkdir -p "$root/src/models" "$root/app"
cd "$source"
cp -r pyproject.toml MANIFEST.in README.md LICENSE llamapool server config "$root/src/"
cp models/*.gguf "$root/src/models/"
mkdir "$root/src/deploy" && cp -r deploy/locks deploy/inventory.sh "$root/src/deploy/"
cd "$root/src"
python3 -m venv "$root/venv"
"$root/venv/bin/pip" install --quiet --require-hashes --requirement deploy/locks/server.txt
"$root/venv/bin/pip" install --quiet --no-deps . && "$root/venv/bin/pip" check
python3 -m venv "$root/tools"
"$root/tools/bin/pip" install --quiet --require-hashes --requirement deploy/locks/image.txt
deploy/inventory.sh "$root/venv" "$root/tools"
rm -rf "$root/src"
cd "$root/app"
ls -l "$root/venv/share/llamapool"
export LLAMA_ARG_HOST=127.0.0.1 LLAMA_ARG_PORT="${PORT:-8199}" PYTHONUNBUFFERED=1 LLAMAPOOL_SERVER__CLOSED=true
export LLAMA_API_KEY=sk-of-the-steps LLAMA_CACHE="$root/cache"
env -u PYTHONPATH PATH="$root/venv/bin:$PATH" llamapool & server=$!
check=$(sed -n 's/^  CMD //p' "$source/Dockerfile" | python3 -c 'import json, sys; print(json.loads(sys.stdin.read())[2])')
for _ in $(seq 120); do python3 -c "$check" 2>/dev/null && break; kill -0 "$server"; sleep 0.5; done
python3 -c "$check"
curl -sS "http://127.0.0.1:$LLAMA_ARG_PORT/v1/chat/completions" -H "authorization: Bearer $LLAMA_API_KEY" \
  -H 'content-type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 20}'
echo
kill -TERM "$server"; wait "$server" && status=0 || status=$?
echo "health check passed, a chat answered, SIGTERM ended it with status $status"
