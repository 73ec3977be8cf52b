#!/usr/bin/env bash
# Builds both stages of the Dockerfile and runs the image, without Docker, a registry, a daemon or namespaces. It needs root,
# Debian's packages buildah and mmdebstrap, a Debian mirror and PyPI. The base is a minimal Debian made by mmdebstrap, which
# replaces debian:bookworm-slim of a registry. `buildah --isolation chroot` runs each step of the Dockerfile,
# and then the image's entry point as its user, with its environment and its health check: once over plain HTTP, once with
# TLS, an API prefix and another port. llama.cpp is compiled (an hour on two cores); with WHEEL, a wheel of llama-cpp-python
# is installed instead. PORT and WORK may be set.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
work=${WORK:-$(mktemp -d)}
port=${PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
store=(buildah --storage-driver vfs --root "$work/store" --runroot "$work/run")
certificates=/etc/ssl/certs/ca-certificates.crt  # trusted by this machine; a PyPI mirror may need its own
ended() { [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true; [ -n "${WORK:-}" ] || rm -rf "$work"; }
trap ended EXIT
mkdir -p "$work/tmp"
export TMPDIR=$work/tmp BUILDAH_ISOLATION=chroot

# The files of the build, as in .dockerignore. With WHEEL, its hash replaces the source's in the lock.
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
# Docker's image format has HEALTHCHECK, OCI's does not.
"${store[@]}" build --format docker --pull-never --build-arg BUILD_IMAGE="$base" --build-arg RUN_IMAGE="$base" \
  --tag llamapool --volume "$certificates:$certificates:ro" "$context"

container=$("${store[@]}" from --pull-never localhost/llamapool)
at=$("${store[@]}" mount "$container")
config_value() { # NAME: print a value of the image's configuration, one line per element
  "${store[@]}" inspect "$container" | python3 -c 'import json, sys
value = json.load(sys.stdin)["Docker"]["config"][sys.argv[1]]
print(*(value["Test"][1:] if sys.argv[1] == "Healthcheck" else value if isinstance(value, list) else [value]), sep="\n")' "$1"
}
[ "$(config_value User)" = llamapool ]
mapfile -t entry < <(config_value Entrypoint)
mapfile -t check < <(config_value Healthcheck)
pythons=$(find "$at" -xdev -type f -perm -100 -regex '.*/python3?\(\.[0-9]+\)?')
[ "$(wc -l <<< "$pythons")" = 1 ] || { echo "several Pythons: $pythons"; exit 1; }
echo "image: $(du -sh "$at" | cut -f1); $(wc -l < "$at/opt/venv/share/llamapool/LICENSES.txt") lines of licences; one Python: ${pythons#"$at"}"

# The server runs in the chroot with these variables. Its processes are found by them, as a chroot has no process namespace.
start_server() { # NAME=VALUE...
  variables=(--env LLAMA_API_KEY=sk-of-the-image --env LLAMA_ARG_PORT="$port" --env LLAMAPOOL_SERVER__ADDRESS_FILE="/dev/shm/llamapool.$port")
  for each; do variables+=(--env "$each"); done
  started=$(date +%s.%N)
  "${store[@]}" run --volume "$work/tls:/tls:ro" "${variables[@]}" "$container" -- "${entry[@]}" & server=$!
  for _ in $(seq 240); do healthy > /dev/null 2>&1 && break; kill -0 "$server"; sleep 0.5; done
  echo "healthy after $(python3 -c "import time; print(round(time.time() - $started, 1))") s: $(healthy)"
}
healthy() { "${store[@]}" run "${variables[@]}" "$container" -- "${check[@]}"; }
process_id() { # WORD N: print the id of the process with this port whose Nth argument is WORD, in any folder
  for pid in $(grep -lzx "LLAMA_ARG_PORT=$port" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3); do
    if tr '\0' '\n' < "/proc/$pid/cmdline" | sed -n "$2s|.*/||p;$2p" | grep -qx "$1"; then echo "$pid"; return; fi
  done
}
stop_server() { # send SIGTERM to the init process, as `docker stop` does; the server must exit with status 0
  kill -TERM "$(process_id tini 1)"
  wait "$server" && status=0 || status=$?
  server=
  [ "$status" = 0 ] || { echo "SIGTERM ended the server with status $status"; exit 1; }
}
chat() { # URL CURL-OPTION...
  curl -sSf "$1/v1/chat/completions" "${@:2}" -H 'authorization: Bearer sk-of-the-image' -H 'content-type: application/json' \
    -d '{"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 20}' \
    | python3 -c 'import json, sys; print("chat:", json.load(sys.stdin)["choices"][0]["message"]["content"])'
}
mkdir -p "$work/tls"
start_server
[ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/v1/models")" = 401 ]
chat "http://127.0.0.1:$port"
echo "CPU backend: $(grep -o 'libggml-cpu[^/ ]*' "/proc/$(process_id llamapool 2)/maps" | sort -u | tr '\n' ' ')"
stop_server
! healthy || { echo "the health check passes without a server"; exit 1; }

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=llm.example -keyout "$work/tls/key.pem" -out "$work/tls/cert.pem" 2> /dev/null
chmod 644 "$work/tls/key.pem"
port=$((port == 65535 ? 65534 : port + 1))
start_server LLAMA_ARG_SSL_KEY_FILE=/tls/key.pem LLAMA_ARG_SSL_CERT_FILE=/tls/cert.pem LLAMA_ARG_API_PREFIX=/llm
chat "https://127.0.0.1:$port/llm" --insecure
stop_server
echo "the image starts, answers and stops, over HTTP and over TLS under a prefix"
