"""Render a kustomization without kubectl, with the features that deploy/kubernetes uses. Other features raise.

``make pod`` compares the result with ``kubectl kustomize``.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
_SELECTORS = (  # fields that includeSelectors changes, in the kinds that have them
    ("Service", "spec/selector"),
    ("Deployment", "spec/selector/matchLabels"),
    ("Deployment", "spec/template/metadata/labels"),
    ("PodDisruptionBudget", "spec/selector/matchLabels"),
    ("NetworkPolicy", "spec/podSelector/matchLabels"),
)
_LIST_KEYS = ("name", "mountPath", "containerPort")  # keys by which a strategic merge matches list elements


def render(folder: Path) -> list[Manifest]:
    """Return the manifests of the kustomization in `folder`. Raises ValueError for an unsupported feature."""
    return _apply(folder, [])


def _apply(folder: Path, manifests: list[Manifest]) -> list[Manifest]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    known = {"apiVersion", "kind", "resources", "components", "patches", "labels", "images"}
    if unknown := kustomization.keys() - known:
        raise ValueError(f"{folder}: {sorted(unknown)}")
    for name in kustomization.get("resources", ()):
        path = folder / name
        manifests += render(path) if path.is_dir() else yaml.safe_load_all(path.read_text(encoding="utf-8"))
    for name in kustomization.get("components", ()):
        manifests = _apply(folder / name, manifests)
    for entry in kustomization.get("patches", ()):
        text = (folder / entry["path"]).read_text(encoding="utf-8") if "path" in entry else entry["patch"]
        manifests = _patched(manifests, entry.get("target"), yaml.safe_load(text))
    for entry in kustomization.get("labels", ()):
        for manifest in manifests:
            _label(manifest, entry["pairs"], selectors=entry["includeSelectors"])
    for entry in kustomization.get("images", ()):
        for manifest in manifests:
            for container in _at(manifest, "spec/template/spec").get("containers", ()):
                if container["image"].rpartition(":")[0] == entry["name"] or container["image"] == entry["name"]:
                    container["image"] = f"{entry['name']}:{entry['newTag']}"
    return manifests


def _patched(manifests: list[Manifest], target: Mapping[str, str] | None, patch: Any) -> list[Manifest]:
    selected = (target["kind"], target["name"]) if target else (patch["kind"], patch["metadata"]["name"])
    (manifest,) = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == selected]
    if isinstance(patch, list):
        for operation in patch:
            if operation["op"] != "remove":
                raise ValueError(f"{operation}: only `remove` is supported")
            parent, _, name = operation["path"].strip("/").rpartition("/")
            _at(manifest, parent).pop(name, None)
    elif patch.get("$patch") == "delete":
        manifests.remove(manifest)
    else:
        _merge(manifest, patch)
    return manifests


def _merge(into: Manifest, patch: Manifest) -> None:
    """Merge strategically: null removes; lists whose elements have a key are merged by it, others are replaced."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        elif isinstance(value, list) and (key := _key_of(value)):
            old = {each[key]: each for each in into.get(name, [])}
            merged = [old.pop(each[key], {}) for each in value]
            for element, each in zip(merged, value, strict=True):
                _merge(element, each)
            into[name] = [*merged, *old.values()]  # kubectl's order
        else:
            into[name] = deepcopy(value)


def _key_of(elements: list[Any]) -> str | None:
    return next((key for key in _LIST_KEYS if all(isinstance(each, dict) and key in each for each in elements)), None)


def _label(manifest: Manifest, labels: Mapping[str, str], *, selectors: bool) -> None:
    paths = ["metadata/labels", *(path for kind, path in _SELECTORS if selectors and kind == manifest["kind"])]
    for path in paths:
        _at(manifest, path, create=True).update(labels)


def _at(manifest: Manifest, path: str, *, create: bool = False) -> Manifest:
    for name in path.split("/"):
        manifest = manifest.setdefault(name, {}) if create else manifest.get(name, {})
    return manifest
