"""The pool's `server.pool.protocols.Fetcher` for hub models."""

from collections.abc import Callable
from dataclasses import replace

from server.errors import InvalidRequest, NotFound, NotSupported, Unavailable
from server.hub.choice import MMPROJ
from server.hub.hub import Files, Hub
from server.hub.reference import SHORT, Reference
from server.pool.protocols import FileProgress
from server.pool.spec import NOT_HERE, ModelSpec, RemoteFiles


class HubFetcher:
    """Downloads from one hub into its cache; `asked` is the hub for client-initiated downloads, by default the same."""

    def __init__(self, hub: Hub, asked: Hub | None = None) -> None:
        self._hub = hub
        self._asked = asked or hub

    def found(self, spec: ModelSpec) -> ModelSpec:
        """The specification with the places of those files that the cache holds. Looks at files only."""
        remote = spec.remote
        if remote is None:
            return spec
        spec = self._addressed(spec, remote)
        model = self._hub.find(Reference.parse(remote.hf), remote.file) if remote.hf else None
        draft = self._hub.find(Reference.parse(remote.draft)) if remote.draft else None
        return _placed(_placed_draft(spec, draft), model)

    def _addressed(self, spec: ModelSpec, remote: RemoteFiles) -> ModelSpec:
        """Of an address or an image the place is known before it is there."""
        if remote.mmproj_url and spec.mmproj is None:
            spec = replace(spec, mmproj=self._hub.url_place(remote.mmproj_url))
        if remote.url and spec.path == NOT_HERE:
            return replace(spec, path=self._hub.url_place(remote.url))
        return replace(spec, path=self._hub.image_place(remote.docker)) if remote.docker else spec

    def check(self, name: str, wanted: Callable[[], bool]) -> None:
        """See `Fetcher.check`. A client names a repository of the configured hub, never an address."""
        try:
            reference = Reference.parse(name)
        except ValueError as error:
            raise InvalidRequest(f"model: {error}", "model") from None
        if self._asked.offline:
            raise NotSupported("This server does not download models: HF_HUB_OFFLINE is set")
        if name in SHORT:
            return
        if self._asked.look(reference, wanted=wanted).preset is not None:
            raise InvalidRequest(f"model: '{name}' is a preset of several models; serve it with -hf {name}", "model")

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        """See `Fetcher.fetch`."""
        remote = spec.remote
        assert remote is not None, "only such models miss files"
        if remote.hf:
            get = self._asked.pull if remote.asked else self._hub.fetch
            siblings = (MMPROJ,) if remote.mmproj else ()
            files = get(Reference.parse(remote.hf), remote.file, report, wanted, siblings=siblings)
            if files.model is None:
                raise NotFound(f"'{remote.hf}' is a preset of several models; serve it with -hf")
            spec = _placed(spec, files)
        elif remote.url:
            self._hub.fetch_url(remote.url, spec.path, report, wanted)
        elif remote.docker:
            self._hub.fetch_image(remote.docker, spec.path, report, wanted)
        if remote.mmproj_url:
            assert spec.mmproj is not None, "its place is known"
            self._hub.fetch_url(remote.mmproj_url, spec.mmproj, report, wanted)
        if remote.draft:
            draft = self._hub.fetch(Reference.parse(remote.draft), "", report, wanted)
            spec = _placed_draft(spec, draft)
        return spec

    def remove(self, name: str) -> None:
        """See `Fetcher.remove`. A name without a quantization belongs to a stopped download."""
        reference = Reference.parse(name)
        try:
            if reference.tag:
                self._hub.remove(reference)
            else:
                self._hub.cache.discard(reference.repository)
        except OSError as error:
            raise Unavailable(f"'{name}' could not be deleted: {error.strerror}") from None


def _placed(spec: ModelSpec, files: Files | None) -> ModelSpec:
    if files is None or files.model is None:
        return spec
    projector = files.siblings.get(MMPROJ) if spec.remote is not None and spec.remote.mmproj else None
    return replace(spec, path=files.model, mmproj=spec.mmproj or projector)


def _placed_draft(spec: ModelSpec, files: Files | None) -> ModelSpec:
    if files is None or files.model is None or spec.draft is None:
        return spec
    return replace(spec, draft=replace(spec.draft, path=files.model))
