#!/usr/bin/env bash
# inventory.sh ENVIRONMENT TOOLS: write the inventory of a virtual environment to its share/llamapool: sbom.cdx.json (CycloneDX)
# and LICENSES.txt, the full licence of each package. TOOLS is an environment with deploy/locks/image.txt.
set -euo pipefail
environment=$1 tools=$2
out=$environment/share/llamapool
mkdir -p "$out"
"$tools/bin/cyclonedx-py" environment --output-reproducible --of JSON -o "$out/sbom.cdx.json" "$environment/bin/python"
"$tools/bin/pip-licenses" --python "$environment/bin/python" --with-system --format plain-vertical --with-license-file --no-license-path \
  --with-notice-file --output-file "$out/LICENSES.txt" >/dev/null
licence=$(find "$environment"/lib/python3*/site-packages/llama_cpp_python-*.dist-info -name 'LICENSE*' | head -n 1)
{
  echo
  echo "llama.cpp, in the libraries of llama-cpp-python"
  echo "MIT License; Copyright (c) 2023-2026 The ggml authors. The terms are those of llama-cpp-python:"
  cat "$licence"
} >>"$out/LICENSES.txt"
grep -c '"bom-ref"' "$out/sbom.cdx.json"
