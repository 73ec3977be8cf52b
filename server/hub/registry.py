"""A model in a registry of container images, as Docker's model runner stores them (OCI distribution specification 1.1).

``registry/name[:tag]``: a manifest lists layers; one of them is the GGUF, named by its SHA-256. Runs in the download
process.
"""

import re
from typing import Any
from urllib.parse import urlencode, urlsplit

from huggingface_hub import get_session

from server.errors import DownloadFailed, NotFound
from server.hub.reference import Image

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')


def gguf_layer(registry: str, name: str, tag: str) -> dict[str, Any]:
    """Return URL, SHA-256, size in bytes and request headers of the GGUF. Raises `NotFound`, `DownloadFailed`, and the
    errors of httpx2.
    """
    image = Image(registry, name, tag)
    url = f"{image.base}/manifests/{tag}"
    reply = get_session().get(url, headers={"Accept": _ACCEPT})
    headers = {}
    challenge = reply.headers.get("WWW-Authenticate", "")
    if reply.status_code == 401 and challenge.lower().startswith("bearer "):
        headers = {"Authorization": f"Bearer {_token(image, challenge)}"}
        reply = get_session().get(url, headers={**headers, "Accept": _ACCEPT})
    reply.raise_for_status()
    try:
        layers = [layer for layer in reply.json()["layers"] if "gguf" in layer["mediaType"]]
        found = [(layer["digest"], int(layer["size"])) for layer in layers if _DIGEST.fullmatch(layer["digest"])]
    except (ValueError, LookupError, TypeError):
        raise DownloadFailed(f"'{name}': {registry} is not an OCI registry; check docker_registry") from None
    if not found:
        raise NotFound(f"'{name}:{tag}' of {registry} contains no GGUF file")
    digest, size = found[0]
    return {
        "url": f"{image.base}/blobs/{digest}",
        "sha256": digest.removeprefix("sha256:"),
        "size": size,
        "headers": headers,
    }


def _token(image: Image, challenge: str) -> str:
    """Return a read token from the service that the registry names."""
    query = dict(_CHALLENGE.findall(challenge))
    realm = query.pop("realm", "")
    if urlsplit(realm).scheme not in ("https", urlsplit(image.base).scheme):
        raise DownloadFailed(f"'{image.name}': {image.registry} gives no URL for access tokens")
    reply = get_session().get(f"{realm}?{urlencode({'scope': f'repository:{image.name}:pull', **query})}")
    reply.raise_for_status()
    found = reply.json()
    token = str(found.get("token") or found.get("access_token"))
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise DownloadFailed(f"'{image.name}': {image.registry} returned no access token")
    return token
