"""Requests to a hub: Hugging Face's, or one with the same API (``/api/models/...``, ``/resolve/...``).

Sessions (proxies, certificates), headers and tokens are `huggingface_hub`'s. Its ``hf_hub_download`` is not used: it
does not verify hashes, resume downloads of other processes, or stop; see `download`.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httpx2
from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers

from server import __version__
from server.errors import DownloadFailed, NotFound, without_credentials
from server.hub.cache import is_commit, is_inside, is_oid
from server.hub.choice import HubFile

MAX_FILES = 100_000  # of a repository
_MAX_LISTING = 64 << 20  # bytes of one page of it
_TIMEOUT_S = 10.0  # to connect, and between two packets
_LOOK_S = 0.2
T = TypeVar("T")
StillWanted = Callable[[], bool]
"""Whether the result is still wanted; called often."""
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is retried after a transient failure, and the delay: 1, 2, 4... times ``wait_s``."""

    retries: int = 3
    wait_s: float = 1.0


class HubUnreachable(DownloadFailed):
    """The hub does not answer or is busy; the cache may be used."""


class Cancelled(DownloadFailed):
    """The result is no longer wanted."""


class Interrupted(Exception):
    """The connection failed, or the hub is busy: the same request may succeed."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The current commit of a repository's branch."""

    branch: str
    id: str


class Remote:
    """One hub. ``endpoint`` is "" for the one of Hugging Face's tools; there, a ``token`` of "" is their own."""

    def __init__(
        self,
        endpoint: str = "",
        token: str = "",
        patience: RetryPolicy | None = None,
        wanted: StillWanted = lambda: True,
    ) -> None:
        self._wanted = wanted
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self.patience = patience or RetryPolicy()
        # None = what `hf auth login` has left: for the hub that Hugging Face's tools use, and for no mirror
        self._token = token.strip() or (None if self.endpoint == constants.ENDPOINT.rstrip("/") else False)

    def commit(self, repository: str) -> Commit:
        """The newest one of ``main``, or of the first branch. Raises `NotFound`, `DownloadFailed`."""
        shown = self._json(f"{self.endpoint}/api/models/{repository}/refs", repository)[0]
        branches = shown.get("branches") if isinstance(shown, dict) else None
        commits = [
            Commit(str(branch["name"]), str(branch["targetCommit"]))
            for branch in branches or ()
            if isinstance(branch, dict) and {"name", "targetCommit"} <= branch.keys()
        ]
        usable = [commit for commit in commits if is_commit(commit.id) and is_inside(commit.branch)]
        if not usable:
            raise DownloadFailed(f"'{repository}': the hub lists no branch of this repository")
        return next((commit for commit in usable if commit.branch == "main"), usable[0])

    def files(self, repository: str, commit: str) -> list[HubFile]:
        """Every file of a commit whose name is safe. Raises `NotFound`, `DownloadFailed`."""
        url: str | None = f"{self.endpoint}/api/models/{repository}/tree/{commit}?recursive=true"
        found: list[HubFile] = []
        while url:
            page, following = self._json(url, repository)
            found += [file for item in page if (file := _file(item))] if isinstance(page, list) else []
            if len(found) > MAX_FILES:
                raise DownloadFailed(f"'{repository}' has more than {MAX_FILES} files")
            url = self._next_page(url, following)
        return found

    def url(self, repository: str, commit: str, path: str) -> str:
        """The address of a file's content."""
        return f"{self.endpoint}/{repository}/resolve/{commit}/{quote(path)}"

    def _next_page(self, url: str, following: str | None) -> str | None:
        """Only of the same hub: the token goes with it."""
        target = urljoin(url, following) if following else None
        same = target is not None and urlsplit(target)[:2] == urlsplit(url)[:2]
        return target if same else None

    def _json(self, url: str, what: str) -> tuple[Any, str | None]:
        """Return the contents of a page, and the URL of the next one."""

        def ask() -> tuple[Any, str | None]:
            with self.get(url, what) as response:
                body = bytearray()
                for chunk in chunks_of(response):
                    body += chunk
                    if len(body) > _MAX_LISTING:
                        raise DownloadFailed(f"'{what}': the hub's reply is too long")
                link = response.links.get("next", {}).get("url")
            try:
                return json.loads(body), link
            except (ValueError, RecursionError):
                raise DownloadFailed(
                    f"'{what}': the reply of {host_of(url)} is not JSON; check that HF_ENDPOINT is the URL of a hub"
                ) from None

        return patiently(ask, self.patience, what, self._wanted)

    @contextlib.contextmanager
    def get(self, url: str, what: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
        """Return the reply to a GET after its headers. The token is sent to the hub only, never to redirect targets.
        Raises `Interrupted`, or the error of `refusal`.
        """
        own = urlsplit(url)[:2] == urlsplit(self.endpoint)[:2]
        given = build_hf_headers(
            token=self._token if own else False, library_name="llamapool", library_version=__version__
        )
        token = given.get("authorization", "")
        if not (token.isascii() and token.isprintable()):  # the libraries below would show it, or stumble over it
            raise DownloadFailed("the access token contains invalid characters; check HF_TOKEN or --hf-token")
        with opened(url, what, {**given, **(headers or {})}) as response:
            yield response


@contextlib.contextmanager
def opened(url: str, what: str, headers: Mapping[str, str], allowed: tuple[int, ...] = ()) -> Iterator[httpx2.Response]:
    """Return the reply to a GET of any URL, as `Remote.get` without a token. `allowed` statuses are not errors."""
    sent = {**headers, "Accept-Encoding": "identity"}
    try:
        with get_session().stream("GET", url, headers=sent, timeout=_TIMEOUT_S) as response:
            if response.status_code in _TEMPORARY:
                raise Interrupted(f"{host_of(str(response.url))} says {response.status_code}")
            if response.status_code not in (200, 206, 416, *allowed):
                raise refusal(response, what)
            yield response
    except httpx2.TransportError as error:
        raise Interrupted(f"{host_of(url)}: {_words(error)}") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise DownloadFailed(f"'{what}': {host_of(url)}: {_words(error)}") from None


def chunks_of(response: httpx2.Response) -> Iterator[bytes]:
    """Iterate over the body. Raises `Interrupted`."""
    try:
        yield from response.iter_bytes()
    except httpx2.TransportError as error:
        raise Interrupted(f"{host_of(str(response.url))}: {_words(error)}") from None


def cut_off(response: httpx2.Response) -> None:
    """Close a connection that another thread reads from."""
    stream = response.extensions.get("network_stream")
    connected = stream.get_extra_info("socket") if stream is not None else None
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)


def patiently(ask: Callable[[], T], patience: RetryPolicy, what: str, wanted: StillWanted) -> T:
    """Ask again after `Interrupted`. Raises `DownloadFailed` when patience is over, and `Cancelled` once it is not
    `wanted`, whatever the other side does."""
    for attempt in range(patience.retries + 1):
        try:
            return while_wanted(ask, wanted, what)
        except Interrupted as error:
            if attempt == patience.retries:
                raise HubUnreachable(f"'{what}': {error}") from None
            pause(patience.wait_s * 2**attempt, wanted, what)
    raise AssertionError("the last attempt returns or raises")


def pause(seconds: float, wanted: StillWanted, what: str) -> None:
    """Wait so long. Raises `Cancelled`."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check_wanted(wanted, what)
        time.sleep(min(left, _LOOK_S))


def check_wanted(wanted: StillWanted, what: str) -> None:
    """Raises `Cancelled`."""
    if not wanted():
        raise Cancelled(f"the download of '{what}' was cancelled")


def while_wanted(
    work: Callable[[], T], wanted: StillWanted, what: str, discard: Callable[[T], object] = lambda _: None
) -> T:
    """Return the result of `work`, run in a thread that is abandoned once the result is unwanted, because name
    resolution cannot be interrupted. Raises `Cancelled`.
    """
    done = threading.Event()
    left = threading.Lock()  # who comes first: the one that leaves, or the result
    results: list[T] = []
    errors: list[BaseException] = []
    abandoned = False

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            errors.append(error)
        else:
            with left:
                if not abandoned:
                    results.append(result)
            if not results:
                discard(result)
        done.set()

    threading.Thread(target=run, name="hub", daemon=True).start()
    while not done.wait(_LOOK_S):
        if not wanted():
            with left:
                abandoned = not results
            if abandoned:
                raise Cancelled(f"the download of '{what}' was cancelled")
    if errors:
        raise errors[0]
    return results[0]


@contextlib.contextmanager
def entered_while_wanted(opening: contextlib.AbstractContextManager[T], wanted: StillWanted, what: str) -> Iterator[T]:
    """Enter the context manager `opening`, but stop waiting when unwanted."""
    opened = while_wanted(opening.__enter__, wanted, what, lambda _: opening.__exit__(None, None, None))
    with contextlib.ExitStack() as stack:
        stack.push(opening)
        yield opened


def refusal(response: httpx2.Response, what: str) -> NotFound | DownloadFailed:
    """Return the error for a hub reply that is neither the content nor retryable."""
    code = response.headers.get("X-Error-Code", "")
    if response.status_code == 404 or code in ("RepoNotFound", "EntryNotFound", "RevisionNotFound"):
        hint = "; of a private one the token is missing (HF_TOKEN)" if response.status_code == 401 else ""
        return NotFound(f"'{what}' is not on the hub ({host_of(str(response.url))}){hint}")
    if response.status_code in (401, 403):
        reason = "is gated: accept its terms on its page" if code == "GatedRepo" else "may not be read"
        return DownloadFailed(
            f"'{what}' {reason}, or the token is missing or wrong: set HF_TOKEN or --hf-token "
            f"({host_of(str(response.url))} says {response.status_code})"
        )
    return DownloadFailed(f"'{what}': {host_of(str(response.url))} says {response.status_code}")


def host_of(url: str) -> str:
    """Host and port: the rest of an address may hold a signature."""
    return urlsplit(url).netloc.rpartition("@")[2] or without_credentials(url)[:100]


def _file(item: object) -> HubFile | None:
    """One entry of a listing; None for a folder, and for names and sums that can't be trusted."""
    if not isinstance(item, dict) or item.get("type") != "file":
        return None
    lfs = item.get("lfs")
    path, size, oid = item.get("path"), item.get("size"), item.get("oid")
    if isinstance(lfs, dict):
        size, oid = lfs.get("size", size), str(lfs.get("oid", "")).removeprefix("sha256:")
    if not isinstance(path, str) or not isinstance(oid, str) or not is_inside(path) or not is_oid(oid):
        return None
    return HubFile(path, size if isinstance(size, int) and size >= 0 else 0, oid)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
