"""A model in a registry of container images, as Docker's model runner keeps them (OCI distribution specification 1.1).

``registry/name[:tag]``: a manifest lists layers, one of which is the GGUF, by its SHA-256.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2

from server.errors import DownloadFailed, NotFound
from server.hub.reference import Image
from server.hub.remote import RetryPolicy, StillWanted, chunks_of, opened, patiently

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_MAX_MANIFEST = 4 << 20


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """The GGUF of an image."""

    url: str
    sha256: str
    size: int
    headers: Mapping[str, str]


def gguf_layer(image: Image, patience: RetryPolicy, wanted: StillWanted) -> ImageLayer:
    """What the manifest says. Raises `NotFound`, `DownloadFailed`."""
    headers = _authorization(image, patience, wanted)
    manifest = _json(f"{image.base}/manifests/{image.tag}", image, patience, wanted, {**headers, "Accept": _ACCEPT})
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        digest = _DIGEST.fullmatch(str(layer.get("digest", ""))) if isinstance(layer, dict) else None
        if digest and "gguf" in str(layer.get("mediaType", "")):
            size = layer.get("size")
            return ImageLayer(
                f"{image.base}/blobs/{digest[0]}", digest[1], size if isinstance(size, int) and size > 0 else 0, headers
            )
    raise NotFound(f"'{image.name}:{image.tag}' of {image.registry} contains no GGUF file")


def _authorization(image: Image, patience: RetryPolicy, wanted: StillWanted) -> dict[str, str]:
    """A token for reading, where the registry sends its clients for one. It goes to nobody else."""

    def challenge() -> str:
        with opened(f"{image.base}/manifests/{image.tag}", image.name, {"Accept": _ACCEPT}, allowed=(401,)) as response:
            return str(response.headers.get("WWW-Authenticate", "")) if response.status_code == 401 else ""

    asked = patiently(challenge, patience, image.name, wanted)
    if not asked.lower().startswith("bearer "):
        return {}
    said = dict(_CHALLENGE.findall(asked))
    realm = said.pop("realm", "")
    if urlsplit(realm).scheme not in ("https", urlsplit(image.base).scheme):
        raise DownloadFailed(f"'{image.name}': {image.registry} gives no URL for access tokens")
    query = urlencode({"scope": f"repository:{image.name}:pull", **said})
    found = _json(f"{realm}?{query}", image, patience, wanted, {})
    token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise DownloadFailed(f"'{image.name}': {image.registry} returned no access token")
    return {"Authorization": f"Bearer {token}"}


def _json(url: str, image: Image, patience: RetryPolicy, wanted: StillWanted, headers: Mapping[str, str]) -> Any:
    def ask() -> Any:
        with opened(url, image.name, headers) as response:
            return json.loads(_limited(response))

    try:
        return patiently(ask, patience, image.name, wanted)
    except (ValueError, RecursionError):
        raise DownloadFailed(
            f"'{image.name}': {image.registry} did not answer as an OCI registry; check docker_registry"
        ) from None


def _limited(response: httpx2.Response) -> bytes:
    body = bytearray()
    for chunk in _bounded(chunks_of(response)):
        body += chunk
    return bytes(body)


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    n = 0
    for chunk in chunks:
        n += len(chunk)
        if n > _MAX_MANIFEST:
            raise ValueError("too long")
        yield chunk
