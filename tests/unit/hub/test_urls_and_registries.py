"""Downloads from a URL and from a registry of container images, against servers on loopback."""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.errors import ConfigError, DownloadFailed, LlamapoolError, NotFound
from server.hub.child import Downloader
from server.hub.hub import Hub, HubFetcher
from server.hub.names import Image
from server.hub.process import Cancelled, WantedFile
from server.pool.spec import NOT_HERE, ModelSpec, RemoteFiles
from tests.support.fake_hub import COMMIT, FakeHub, QuietHandler, fake_hub, serving

MODEL = b"GGUF" + bytes(3000)
DIGEST = hashlib.sha256(MODEL).hexdigest()


def fetch(hub: Hub, remote: RemoteFiles, path: Path = NOT_HERE) -> ModelSpec:
    """Return the model with its files, downloaded if they are missing, as the pool does."""
    fetcher = HubFetcher(hub)
    spec = fetcher.found(ModelSpec("m", path, remote=remote))
    return fetcher.fetch(spec, lambda _: None, lambda: True) if spec.missing else spec


@pytest.fixture
def remote() -> Iterator[FakeHub]:
    parts = {f"m-F16-0000{i}-of-00002.gguf": MODEL + bytes([i]) for i in (1, 2)}
    with fake_hub({"o/n": {"m.gguf": MODEL, **parts}}) as hub:
        yield hub


def test_url_is_downloaded_once_and_gets_the_hub_token_only_if_the_hub_serves_it(
    remote: FakeHub, tmp_path: Path
) -> None:
    url = f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf?download=true"
    hub = Hub(folder=tmp_path, endpoint="http://127.0.0.1:1", token="hf_secret", retry_wait_s=0)
    spec = fetch(hub, RemoteFiles(url=url))
    assert (spec.path.name, spec.path.read_bytes()) == ("m.gguf", MODEL)
    assert fetch(hub, RemoteFiles(url=url)) == spec
    assert [request.token for request in remote.requests] == [""]
    own = Hub(folder=tmp_path, endpoint=remote.url, token="hf_secret", retry_wait_s=0)
    fetch(own, RemoteFiles(url=url.replace("?download=true", "")))
    assert remote.requests[-1].token == "hf_secret"


@pytest.mark.parametrize(
    ("file", "offline", "error"), [("missing.gguf", False, NotFound), ("m.gguf", True, DownloadFailed)]
)
def test_missing_url_and_offline_mode_fail(
    remote: FakeHub, tmp_path: Path, file: str, offline: bool, error: type[LlamapoolError]
) -> None:
    hub = Hub(folder=tmp_path, offline=offline, retry_wait_s=0)
    with pytest.raises(error):
        fetch(hub, RemoteFiles(url=f"{remote.url}/o/n/resolve/x/{file}"))
    assert not offline or remote.requests == []


@pytest.mark.parametrize(
    ("first", "second", "range_"),
    [
        ('"a"', '"a"', "bytes=1000-"),
        ('"a"', '"b"', ""),
        ('W/"a"', 'W/"a"', ""),  # a weak ETag does not identify bytes
        ("", "", ""),
    ],
)
def test_download_of_a_url_resumes_only_with_the_same_strong_etag(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, range_: str
) -> None:
    """A URL has no hash that would detect mixed contents. Only the download process checks the free space, after it
    has deleted unusable partial files.
    """
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    url = f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf"
    path = Hub(folder=tmp_path).url_path(url)
    path.parent.mkdir(parents=True)
    name = hashlib.sha256(first.encode()).hexdigest()[:16] if first.startswith('"') else ""
    path.with_name(f"m.gguf.{name}.incomplete").write_bytes(MODEL[:1000])
    content = MODEL if range_ else b"GGUF" + b"x" * 3000
    remote.tag, remote.repositories["o/n"]["m.gguf"] = second, content
    spec = fetch(Hub(folder=tmp_path, retry_wait_s=0), RemoteFiles(url=url))
    assert spec.path.read_bytes() == content
    assert [request.range for request in remote.content_requests()] == [range_]
    assert [path.name for path in spec.path.parent.iterdir() if path.suffix != ".lock"] == ["m.gguf"]


def test_partial_file_of_another_process_that_downloads_now_is_kept(remote: FakeHub, tmp_path: Path) -> None:
    url, reports = f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf", list[object]()
    hub = Hub(folder=tmp_path, retry_wait_s=0, report=reports.append, wanted=lambda: not reports)
    path = hub.url_path(url)
    path.parent.mkdir(parents=True)
    path.with_name("m.gguf.0.incomplete").write_bytes(b"GGUF")
    with path.with_name("m.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Cancelled):
            hub.fetch_url(url, path)
    assert path.with_name("m.gguf.0.incomplete").exists()


@pytest.mark.parametrize("n_free", [len(MODEL), 0])
def test_partial_file_of_an_older_download_is_deleted_before_the_space_is_checked(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_free: int
) -> None:
    path = tmp_path / "m.gguf"
    old, new = (tmp_path / f"m.gguf.{i}.incomplete" for i in range(2))
    old.write_bytes(MODEL[:1000])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0 if old.exists() else n_free))
    file = WantedFile("m.gguf", f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf", path, new, len(MODEL))
    with nullcontext() if n_free else pytest.raises(DownloadFailed, match=r"'m\.gguf' needs 0\.0 MiB more"):
        Downloader(remote.url, "", 0).run("download", file.name, {"file": asdict(file), "lock": f"{path}.lock"})
    assert path.exists() == bool(n_free)


@contextmanager
def running_registry(*, content: bytes = MODEL) -> Iterator[str]:
    """Run a registry on loopback that requires a bearer token. `content`: of the model's layer."""
    layer = {"mediaType": "application/vnd.docker.ai.gguf.v3", "digest": f"sha256:{DIGEST}", "size": len(content)}
    manifest = {"layers": [{"mediaType": "text/plain", "digest": "sha256:" + "0" * 64, "size": 1}, layer]}
    answers = {
        "/v2/ai/tiny/manifests/latest": json.dumps(manifest).encode(),
        f"/v2/ai/tiny/blobs/sha256:{DIGEST}": content,
    }

    class Handler(QuietHandler):
        def reply(self) -> None:
            realm = f"http://{self.headers['Host']}/token"
            if self.path.startswith("/token?scope=repository%3Aai%2F"):
                self.answer(200, b'{"token": "for-you"}')
            elif self.headers.get("Authorization") != "Bearer for-you":
                self.answer(401, b"", **{"WWW-Authenticate": f'Bearer realm="{realm}",service="tests"'})
            else:
                self.answer(200 if self.path in answers else 404, answers.get(self.path, b""))

    with serving(Handler) as port:
        yield f"127.0.0.1:{port}"


def test_model_of_an_image_is_downloaded_once(tmp_path: Path) -> None:
    with running_registry() as host:
        spec = fetch(Hub(folder=tmp_path, token="hf_secret", retry_wait_s=0), RemoteFiles(docker=f"{host}/ai/tiny"))
        assert spec.path.read_bytes() == MODEL
        assert fetch(Hub(folder=tmp_path, offline=True), RemoteFiles(docker=f"{host}/ai/tiny")) == spec


def test_projector_is_downloaded_from_its_url(remote: FakeHub, tmp_path: Path) -> None:
    url = f"{remote.url}/o/n/resolve/x/m.gguf"
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    fetcher = HubFetcher(Hub(folder=tmp_path / "cache", retry_wait_s=0))
    spec = fetcher.found(ModelSpec("m", model, remote=RemoteFiles(mmproj_url=url)))
    assert spec.missing
    assert fetcher.fetch(spec, lambda _: None, lambda: True) == spec
    assert not spec.missing
    assert spec.mmproj
    assert spec.mmproj.read_bytes() == MODEL


def test_image_without_a_registry_is_in_the_configured_one(tmp_path: Path) -> None:
    with running_registry() as host:
        hub = Hub(folder=tmp_path, registry=host, retry_wait_s=0)
        spec = fetch(hub, RemoteFiles(docker="tiny"))
        assert spec.path.read_bytes() == MODEL
        assert spec == replace(fetch(hub, RemoteFiles(docker=f"{host}/ai/tiny")), remote=spec.remote)
    with pytest.raises(ConfigError, match="write REGISTRY/ai/tiny, or set docker_registry"):
        fetch(Hub(folder=tmp_path), RemoteFiles(docker="tiny"))


def test_image_with_a_wrong_digest_or_an_unknown_name_fails(tmp_path: Path) -> None:
    with running_registry(content=MODEL[:-1] + b"x") as host, pytest.raises(DownloadFailed, match="SHA-256 differs"):
        fetch(Hub(folder=tmp_path, retry_wait_s=0), RemoteFiles(docker=f"{host}/ai/tiny"))
    with running_registry() as host, pytest.raises(NotFound):
        fetch(Hub(folder=tmp_path, retry_wait_s=0), RemoteFiles(docker=f"{host}/ai/none"))


@pytest.mark.parametrize(
    "text", ["h.x/../y", "h.x/A", "http://h.x/y", "h.x/y:", "h.x/y:../z", "../y", "A", "ai/", "/ai", "gemma3:../x"]
)
def test_invalid_image_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:TAG"):
        Image.parse(text)
