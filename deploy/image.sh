#!/usr/bin/env bash
# Builds the image of the Dockerfile, both of its stages as they stand, and runs it: without Docker, a registry, a daemon or
# namespaces. Wanted are root, Debian's packages buildah and mmdebstrap, a Debian mirror and PyPI. The base is a minimal Debian with its
# Python, made here, in the place of python:3.12-slim-bookworm, which lies in a registry. `buildah --isolation chroot` runs each step
# as the Dockerfile says; so is the image's own command, as its user, with its environment and its health check. llama.cpp is compiled
# (half an hour on two cores), or WHEEL names a wheel of llama-cpp-python that stands for it. PORT and WORK may be set.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
work=${WORK:-$(mktemp -d)}
port=${PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
store=(buildah --storage-driver vfs --root "$work/store" --runroot "$work/run")
certificates=/etc/ssl/certs/ca-certificates.crt  # those that this machine trusts: its mirror of PyPI may have one of its own
ended() { [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true; [ -n "${WORK:-}" ] || rm -rf "$work"; }
trap ended EXIT
mkdir -p "$work/tmp"
export TMPDIR=$work/tmp BUILDAH_ISOLATION=chroot

# The files of the build, as .dockerignore lets them through. With WHEEL its hash stands in the lock for the source's.
context=$work/context
rm -rf "$context" && mkdir -p "$context/models" "$context/deploy"
cd "$source"
cp -r Dockerfile pyproject.toml MANIFEST.in README.md LICENSE llamapool server config "$context/"
cp models/*.gguf "$context/models/" && cp -r deploy/locks deploy/inventory.sh "$context/deploy/"
if [ -n "${WHEEL:-}" ]; then
  locks=$context/deploy/locks
  sed -i "/^llama-cpp-python==/{n;s/sha256:[0-9a-f]*/sha256:$(sha256sum "$WHEEL" | cut -d' ' -f1)/}" "$locks/server.txt"
  sed -i '1i --find-links deploy/locks' "$locks/server.txt"
  cp "$WHEEL" "$locks/"
fi

base=localhost/llamapool-base
if ! "${store[@]}" inspect --type image "$base" > /dev/null 2>&1; then
  mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$work/base.tar"
  container=$("${store[@]}" from scratch)
  "${store[@]}" add --quiet "$container" "$work/base.tar" / > /dev/null
  "${store[@]}" commit --quiet --rm "$container" "$base" > /dev/null
  rm "$work/base.tar"
fi
"${store[@]}" build --pull-never --build-arg BUILD_IMAGE="$base" --build-arg RUN_IMAGE="$base" --tag llamapool \
  --volume "$certificates:$certificates:ro" "$context"

container=$("${store[@]}" from --pull-never localhost/llamapool)
at=$("${store[@]}" mount "$container")
echo "image: $(du -sh "$at" | cut -f1); $(cat "$at/opt/venv/share/llamapool/LICENSES.txt" | wc -l) lines of licences"
[ "$("${store[@]}" inspect --format '{{.OCIv1.Config.User}}' "$container")" = llamapool ]
"${store[@]}" run --env LLAMA_API_KEY=sk-of-the-image --env LLAMA_ARG_PORT="$port" "$container" -- llamapool & server=$!
check=$(sed -n 's/^  CMD //p' "$source/Dockerfile" | python3 -c 'import json, sys; print(json.loads(sys.stdin.read())[2])')
for _ in $(seq 240); do
  LLAMA_ARG_PORT=$port python3 -c "$check" 2> /dev/null && break; kill -0 "$server"; sleep 0.5
done
"${store[@]}" run --env LLAMA_ARG_PORT="$port" "$container" -- python3 -c "$check"
[ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/v1/models")" = 401 ]
curl -sSf "http://127.0.0.1:$port/v1/chat/completions" -H 'authorization: Bearer sk-of-the-image' \
  -H 'content-type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 20}'
echo
# chroot has no processes of its own: the one with this port and the image's program is to end as a container is stopped.
inside=
for pid in $(grep -lzx "LLAMA_ARG_PORT=$port" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3); do
  if grep -qzx /opt/venv/bin/llamapool "/proc/$pid/cmdline"; then inside=$pid; fi
done
kill -TERM "$inside"; wait "$server" && status=0 || status=$?
echo "health check passed, a chat answered, SIGTERM ended it with status $status"
