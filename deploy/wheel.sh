#!/usr/bin/env bash
# Build both distributions in dist/ (each wheel from its source distribution), install each in an empty environment, and test
# the commands, the packaged default, the application and the client. `make wheel`.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
root=$(mktemp -d); trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$root"' EXIT
unset PYTHONPATH LLAMAPOOL_CONFIG
export LLAMA_CACHE="$root/cache" HF_HUB_OFFLINE=1 NO_COLOR=1

"$python" -m venv "$root/tools"
"$root/tools/bin/pip" install --quiet build
mkdir -p "$source/dist"
rm -f "$source"/dist/llamapool*
for project in "$source" "$source/extras/client"; do
  "$root/tools/bin/python" -m build --outdir "$source/dist" "$project" >"$root/build.log" 2>&1 || { tail -n 40 "$root/build.log"; exit 1; }
done
ls -l "$source"/dist/llamapool*
version=$(cd "$source" && "$python" -c 'import llamapool; print(llamapool.__version__)')
cd "$root"

expect_output() { # TEXT COMMAND...: check that the command prints this text
  local text=$1 out; shift
  out=$("$@" 2>&1) || { echo "$* failed: $out"; exit 1; }
  grep -qF -- "$text" <<<"$out" || { echo "$* does not print '$text': $out"; exit 1; }
  echo "ok: $*"
}

"$python" -m venv client
client/bin/pip install --quiet "$source/dist/llamapool_client-$version-py3-none-any.whl"
expect_output "No module named" bash -c '! client/bin/python -c "import llama_cpp"'
expect_output "No module named" bash -c '! client/bin/python -c "import server"'
expect_output "py.typed" client/bin/python -c 'import pathlib, llamapool; print(*pathlib.Path(llamapool.__file__).parent.iterdir())'
expect_output "$version" client/bin/python -c 'import llamapool; print(llamapool.__version__, llamapool.LlamaCppClient)'

"$python" -m venv whole
whole/bin/pip install --quiet --find-links "$source/dist" "llamapool[client]==$version"
whole/bin/pip check
for command in whole/bin/llamapool "whole/bin/python -m llamapool" "whole/bin/python -m server"; do
  expect_output "llamapool $version" $command --version
done
expect_output "--ctx-size" whole/bin/llamapool --help
expect_output "pull" whole/bin/llamapool pull --help
expect_output "scenario" whole/bin/llamapool bench --help
expect_output "complete" whole/bin/llamapool --completion-bash
expect_output "devices" whole/bin/llamapool --list-devices
expect_output "demo" whole/bin/llamapool check-config whole/share/llamapool/config/default.yaml
expect_output "no models in" whole/bin/llamapool list
expect_output "context" whole/bin/llamapool fit whole/share/llamapool/models/demo.gguf
expect_output "FastAPI" whole/bin/python -c 'from llamapool.app import create_app, load_settings; print(create_app(load_settings([])))'
expect_output "py.typed" whole/bin/python -c 'import pathlib, server; print(*pathlib.Path(server.__file__).parent.iterdir())'

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
LLAMA_ARG_PORT=$port whole/bin/llamapool >server.log 2>&1 & server=$!
cat >ask.py <<'PROGRAM'
import sys
from llamapool import LlamaCppClient

with LlamaCppClient(sys.argv[1]) as client:
    assert client.wait_until_ready(120)
    reply = client.chat.completions.create([{"role": "user", "content": "What is the capital of France?"}], temperature=0)
    print(reply.choices[0].message.content)
PROGRAM
for environment in whole client; do
  expect_output "Paris" $environment/bin/python ask.py "http://127.0.0.1:$port" || { cat server.log; exit 1; }
done
curl -sSf "http://127.0.0.1:$port/" | grep -qi '<!doctype html' && echo "ok: the web UI"
kill -TERM "$server"; wait "$server" && status=0 || status=$?
echo "ok: SIGTERM ended the packaged default with status $status"
