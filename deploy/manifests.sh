#!/usr/bin/env bash
# manifests.sh IMAGE VERSION: write dist/llamapool-kubernetes-VERSION.tar.gz, deploy/kubernetes with the version's image in
# every layer. If kubectl is installed, each layer is rendered as a check.
set -euo pipefail
image=$1 version=$2
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
root=$work/llamapool-kubernetes-$version
cp -r "$source/deploy/kubernetes" "$root"
sed -i -E "/^  - name: llamapool\$/{n;s|newTag: .*|newName: $image\n    newTag: $version|}" "$root/base/kustomization.yaml"
# A layer must name the image as the base has renamed it.
sed -i -E "s|^  - name: llamapool\$|  - name: $image|;s|newTag: cuda\$|newTag: $version-cuda|" "$root/gpu/kustomization.yaml"
if command -v kubectl > /dev/null; then
  for file in "$root"/*/kustomization.yaml; do
    layer=$(basename "$(dirname "$file")")
    named=$image:$version; [ "$layer" != gpu ] || named+=-cuda
    kubectl kustomize "$root/$layer" | grep -qx " *image: $named" || { echo "$layer does not name $named"; exit 1; }
  done
fi
mkdir -p "$source/dist"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -czf "$source/dist/llamapool-kubernetes-$version.tar.gz" "llamapool-kubernetes-$version"
echo "dist/llamapool-kubernetes-$version.tar.gz"
