"""The download process: sends requests to a hub and downloads files with `huggingface_hub`. `Hub.call` starts it.

It reads one action with arguments as JSON from stdin and writes the result or the error to stdout. Data are written to
``<path>.incomplete``, which a later download resumes. A lock shared with huggingface_hub prevents two downloads of the
same file. A file is renamed only if its SHA-256 is correct.
"""

import errno
import glob
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get, xet_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import WeakFileLock, build_hf_headers

from server import __version__
from server.errors import DownloadFailed, NotFound, without_credentials
from server.hub.cache import PARTIAL, is_commit, is_inside, is_oid
from server.hub.names import SUFFIX, Image
from server.hub.process import HubUnreachable, WantedFile, check_space

MAX_FILES = 100_000  # per repository
_CHUNK_BYTES = 1 << 20
_RETRIES = 3
_MAGIC = b"GGUF"
_TRANSIENT = frozenset({408, 416, 425, 429, 500, 502, 503, 504})
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]+"')
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')


class Downloader:
    """Sends requests to the hub at `endpoint`. `token`: "" = that of Hugging Face's tools, which is sent only to their
    endpoint.
    """

    def __init__(self, endpoint: str, token: str, retry_wait_s: float) -> None:
        self._endpoint = endpoint
        self._token = token.strip() or (None if endpoint == constants.ENDPOINT.rstrip("/") else False)
        self._retry_wait_s = retry_wait_s

    def run(self, action: str, what: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of an action; transient failures are retried. Raises `NotFound`, `DownloadFailed`."""
        actions: dict[str, Callable[..., Any]] = {
            "listing": self._listing,
            "metadata": self._metadata,
            "layer": gguf_layer,
            "download": self._download,
        }
        self._headers(self._endpoint)  # checks the token
        for attempt in range(_RETRIES + 1):
            try:
                return actions[action](**arguments)
            except (HfHubHTTPError, httpx2.HTTPStatusError) as error:
                failure = _refusal(error.response, what)
            except httpx2.TransportError as error:
                failure = HubUnreachable(f"'{what}': {host_of(str(error.request.url))}: {_reason(error)}")
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure = DownloadFailed(f"'{what}': {_reason(error)}")
            if not isinstance(failure, HubUnreachable) or attempt == _RETRIES:
                raise failure
            time.sleep(self._retry_wait_s * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _listing(self, repository: str) -> dict[str, Any]:
        """Return branch, commit and files of ``main``, or of the first branch. A file is path, bytes, hash, and whether
        it is stored in Xet.
        """
        api = HfApi(self._endpoint, token=self._token, library_name="llamapool", library_version=__version__)
        try:
            branches = [each for each in api.list_repo_refs(repository).branches if is_inside(each.name)]
            branch = next((each for each in branches if each.name == "main"), branches[0] if branches else None)
            if branch is None or not is_commit(branch.target_commit):
                raise DownloadFailed(f"'{repository}': the hub lists no branch of this repository")
            files: list[tuple[str, int, str, bool]] = []
            for file in api.list_repo_tree(repository, recursive=True, revision=branch.target_commit):
                if len(files) >= MAX_FILES:
                    raise DownloadFailed(f"'{repository}' has more than {MAX_FILES} files")
                if isinstance(file, RepoFile):
                    size, oid = (file.lfs.size, file.lfs.sha256) if file.lfs else (file.size, file.blob_id)
                    oid = oid.removeprefix("sha256:")
                    if is_inside(file.path) and is_oid(oid):
                        files.append((file.path, size, oid, file.xet_hash is not None))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            host = host_of(self._endpoint)
            raise DownloadFailed(
                f"'{repository}': the reply of {host} is no listing; check that HF_ENDPOINT is the URL of a hub"
            ) from None
        return {"branch": branch.name, "commit": branch.target_commit, "files": files}

    def _metadata(self, url: str) -> dict[str, Any]:
        """Return the size in bytes (0 = unknown) and the strong ETag ("" = none) of a URL by a HEAD request."""
        reply = get_session().head(url, headers=self._headers(url), follow_redirects=True)
        if reply.status_code != 200:
            return {"size": 0, "etag": ""}
        size, etag = reply.headers.get("Content-Length", ""), reply.headers.get("ETag", "")
        return {
            "size": int(size) if size.isdecimal() and "Content-Encoding" not in reply.headers else 0,
            "etag": etag if _STRONG_ETAG.fullmatch(etag) else "",
        }

    def _download(self, file: dict[str, Any], lock: str) -> None:
        """Download a file unless it exists. After a failure, received data remain for the next download, unless they
        are wrong or the disk is full.
        """
        wanted = WantedFile(**{**file, "path": Path(file["path"]), "partial": Path(file["partial"])})
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        Path(lock).parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if wanted.path.exists():
                return
            for other in wanted.path.parent.glob(f"{glob.escape(wanted.path.name)}.*{PARTIAL}"):
                if other != wanted.partial:  # data with another ETag
                    other.unlink()
            check_space([wanted], wanted.path.parent)
            resumed = wanted.partial_bytes > 0
            self._receive(wanted)
            if not _is_correct(wanted) and resumed:  # the resumed data may belong to another file
                wanted.partial.unlink()
                self._receive(wanted)
            if not _is_correct(wanted):
                wanted.partial.unlink()
                raise DownloadFailed(
                    f"'{wanted.name}': the received file differs from the announced one "
                    f"({'its SHA-256 differs' if wanted.sha256 else 'it is no GGUF'}); it was deleted; try again; "
                    "if the error repeats, the hub's file is damaged"
                )
            os.replace(wanted.partial, wanted.path)

    def _receive(self, wanted: WantedFile) -> None:
        if wanted.size and wanted.partial_bytes > wanted.size:
            wanted.partial.unlink()
        headers = {**self._headers(wanted.url), **wanted.headers}
        size = wanted.size or None
        try:
            if wanted.xet:
                metadata = get_hf_file_metadata(wanted.url, token=self._token, endpoint=self._endpoint)
                if metadata.xet_file_data is not None:
                    xet_get(
                        incomplete_path=wanted.partial,
                        xet_file_data=metadata.xet_file_data,
                        headers=headers,
                        expected_size=size,
                    )
                    return
            with wanted.partial.open("ab") as file:
                http_get(wanted.url, file, resume_size=file.tell(), headers=headers, expected_size=size)
                file.flush()
                os.fsync(file.fileno())
        except HfHubHTTPError as error:
            if error.response.status_code == 416:
                wanted.partial.unlink(missing_ok=True)
            raise
        except OSError as error:
            if isinstance(error, httpx2.HTTPError):
                raise
            if error.errno in (None, errno.ENOSPC, errno.EDQUOT):
                wanted.partial.unlink(missing_ok=True)
            if error.errno is None:  # its text contains a part of the URL, which may be a signature
                raise DownloadFailed(f"'{wanted.name}': {host_of(wanted.url)} sent another file: wrong size") from None
            raise

    def _headers(self, url: str) -> dict[str, str]:
        """Return the headers of a request. The token is sent only to the hub, never to redirect targets."""
        is_hub = urlsplit(url)[:2] == urlsplit(self._endpoint)[:2]
        headers = build_hf_headers(
            token=self._token if is_hub else False, library_name="llamapool", library_version=__version__
        )
        token = headers.get("authorization", "")
        if not (token.isascii() and token.isprintable()):
            raise DownloadFailed("the access token contains invalid characters; check HF_TOKEN or --hf-token")
        return {**headers, "Accept-Encoding": "identity"}


def gguf_layer(registry: str, name: str, tag: str) -> dict[str, Any]:
    """Return URL, SHA-256, size in bytes and request headers of the GGUF in a registry of container images.

    Docker's model runner stores it there as a layer (OCI distribution specification 1.1).
    Raises `NotFound`, `DownloadFailed`, and the errors of httpx2.
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


def _is_correct(wanted: WantedFile) -> bool:
    """Return whether the received data have the expected hash; without one, whether they start like a GGUF."""
    with wanted.partial.open("rb") as file:
        if not wanted.sha256:
            return not wanted.name.endswith(SUFFIX) or file.read(len(_MAGIC)) == _MAGIC
        return hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256.lower()


def _refusal(response: httpx2.Response, what: str) -> NotFound | DownloadFailed:
    """Return the error for an error reply; `HubUnreachable` if a retry may succeed."""
    code, status = response.headers.get("X-Error-Code", ""), response.status_code
    host = host_of(str(response.url))
    if status in _TRANSIENT:
        return HubUnreachable(f"'{what}': {host} says {status}")
    if status == 404 or code in ("RepoNotFound", "EntryNotFound", "RevisionNotFound"):
        hint = "; a private one needs a token (HF_TOKEN)" if status == 401 else ""
        return NotFound(f"'{what}' is not on the hub ({host}){hint}")
    if status in (401, 403):
        reason = "is gated: accept its terms on its page" if code == "GatedRepo" else "may not be read"
        return DownloadFailed(
            f"'{what}' {reason}, or the token is missing or wrong: set HF_TOKEN or --hf-token ({host} says {status})"
        )
    return DownloadFailed(f"'{what}': {host} says {status}")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def host_of(url: str) -> str:
    """Return host and port, because the rest of a URL may contain a signature."""
    return urlsplit(url).netloc.rpartition("@")[2] or without_credentials(url)[:100]


def _exit_with_parent(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Run one action. Parameters and result: `server.hub.hub.Hub.call`."""
    request = json.load(sys.stdin)
    threading.Thread(target=_exit_with_parent, args=(request["parent"],), daemon=True).start()
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES  # lost by an interrupted download; 10 MB by default
    try:
        downloader = Downloader(request["endpoint"], request["token"], request["retry_wait_s"])
        answer = {"result": downloader.run(request["action"], request["what"], request["arguments"])}
    except (NotFound, DownloadFailed) as error:
        answer = {"error": type(error).__name__, "message": error.message}
    except OSError as error:
        message = f"'{request['what']}' cannot be written: {error.strerror}: {error.filename}"
        answer = {"error": "DownloadFailed", "message": message}
    print(json.dumps(answer))
