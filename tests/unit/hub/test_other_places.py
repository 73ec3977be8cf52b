"""Models at an address and in a registry of images, and a disk that is really full."""

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
from tests.support.stand_in_hub import COMMIT, QuietHandler, StandInHub, serving, stand_in_hub

MODEL = b"GGUF" + bytes(3000)
DIGEST = hashlib.sha256(MODEL).hexdigest()


def fetched(hub: Hub, remote: RemoteFiles, path: Path = NOT_HERE) -> ModelSpec:
    """What the pool does: see what is there, else fetch."""
    fetcher = HubFetcher(hub)
    spec = fetcher.found(ModelSpec("m", path, remote=remote))
    return fetcher.fetch(spec, lambda _: None, lambda: True) if spec.missing else spec


@pytest.fixture
def remote() -> Iterator[StandInHub]:
    parts = {f"m-F16-0000{i}-of-00002.gguf": MODEL + bytes([i]) for i in (1, 2)}
    with stand_in_hub({"o/n": {"m.gguf": MODEL, **parts}}) as hub:
        yield hub


def test_an_address_is_downloaded_once_without_the_hubs_token(remote: StandInHub, tmp_path: Path) -> None:
    url = f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf?download=true"
    hub = Hub(folder=tmp_path, endpoint="http://127.0.0.1:1", token="hf_secret", retry_wait_s=0)
    spec = fetched(hub, RemoteFiles(url=url))
    assert (spec.path.name, spec.path.read_bytes()) == ("m.gguf", MODEL)
    assert fetched(hub, RemoteFiles(url=url)) == spec
    assert [asked.token for asked in remote.asked] == [""]
    own = Hub(folder=tmp_path, endpoint=remote.url, token="hf_secret", retry_wait_s=0)
    fetched(own, RemoteFiles(url=url.replace("?download=true", "")))
    assert remote.asked[-1].token == "hf_secret"


@pytest.mark.parametrize(("end", "kind"), [("missing.gguf", NotFound), ("m.gguf", DownloadFailed)])
def test_an_address_that_fails(remote: StandInHub, tmp_path: Path, end: str, kind: type[LlamapoolError]) -> None:
    offline = kind is DownloadFailed
    with pytest.raises(kind):
        fetched(
            Hub(folder=tmp_path, offline=offline, retry_wait_s=0), RemoteFiles(url=f"{remote.url}/o/n/resolve/x/{end}")
        )
    assert not offline or remote.asked == []


@pytest.mark.parametrize(
    ("first", "second", "range_"),
    [
        ('"a"', '"a"', "bytes=1000-"),
        ('"a"', '"b"', ""),
        ('W/"a"', 'W/"a"', ""),  # a weak ETag does not identify bytes
        ("", "", ""),
    ],
)
def test_the_rest_of_an_address_is_of_the_same_content(
    remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, range_: str
) -> None:
    """No hash would tell afterwards. Another download resumes, when the URL may have other content. The space is looked
    at by the process that deletes what is received in vain.
    """
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    url = f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf"
    place = Hub(folder=tmp_path).url_place(url)
    place.parent.mkdir(parents=True)
    name = hashlib.sha256(first.encode()).hexdigest()[:16] if first.startswith('"') else ""
    place.with_name(f"m.gguf.{name}.incomplete").write_bytes(MODEL[:1000])
    other = MODEL if range_ else b"GGUF" + b"x" * 3000
    remote.tag, remote.repositories["o/n"]["m.gguf"] = second, other
    spec = fetched(Hub(folder=tmp_path, retry_wait_s=0), RemoteFiles(url=url))
    assert spec.path.read_bytes() == other
    assert [asked.range for asked in remote.contents_asked()] == [range_]
    assert [path.name for path in spec.path.parent.iterdir() if path.suffix != ".lock"] == ["m.gguf"]


def test_a_download_of_an_address_keeps_the_data_of_one_that_another_process_has_begun(
    remote: StandInHub, tmp_path: Path
) -> None:
    url, seen = f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf", list[object]()
    hub = Hub(folder=tmp_path, retry_wait_s=0, report=seen.append, wanted=lambda: not seen)
    place = hub.url_place(url)
    place.parent.mkdir(parents=True)
    place.with_name("m.gguf.0.incomplete").write_bytes(b"GGUF")
    with place.with_name("m.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Cancelled):
            hub.fetch_url(url, place)
    assert place.with_name("m.gguf.0.incomplete").exists()


@pytest.mark.parametrize("n_free", [len(MODEL), 0])
def test_what_an_older_download_has_received_takes_no_space(
    remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_free: int
) -> None:
    place = tmp_path / "m.gguf"
    old, new = (tmp_path / f"m.gguf.{i}.incomplete" for i in range(2))
    old.write_bytes(MODEL[:1000])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0 if old.exists() else n_free))
    file = WantedFile("m.gguf", f"{remote.url}/o/n/resolve/{COMMIT}/m.gguf", place, new, len(MODEL))
    with nullcontext() if n_free else pytest.raises(DownloadFailed, match=r"'m\.gguf' needs 0\.0 MiB more"):
        Downloader(remote.url, "", 0).run("download", file.name, {"file": asdict(file), "lock": f"{place}.lock"})
    assert place.exists() == bool(n_free)


@contextmanager
def registry(*, content: bytes = MODEL) -> Iterator[str]:
    """A registry on the loopback that sends its clients for a token first."""
    manifest = {"layers": [{"mediaType": "text/plain", "digest": "sha256:" + "0" * 64, "size": 1}]}
    kind = "application/vnd.docker.ai.gguf.v3"
    manifest["layers"].append({"mediaType": kind, "digest": f"sha256:{DIGEST}", "size": len(content)})

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


def test_the_model_of_an_image(tmp_path: Path) -> None:
    with registry() as host:
        spec = fetched(Hub(folder=tmp_path, token="hf_secret", retry_wait_s=0), RemoteFiles(docker=f"{host}/ai/tiny"))
        assert spec.path.read_bytes() == MODEL
        again = Hub(folder=tmp_path, offline=True)
        assert fetched(again, RemoteFiles(docker=f"{host}/ai/tiny")) == spec


def test_a_projector_at_an_address(remote: StandInHub, tmp_path: Path) -> None:
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


def test_a_name_without_a_registry_is_in_the_one_of_the_settings(tmp_path: Path) -> None:
    with registry() as host:
        hub = Hub(folder=tmp_path, registry=host, retry_wait_s=0)
        spec = fetched(hub, RemoteFiles(docker="tiny"))
        assert spec.path.read_bytes() == MODEL
        assert spec == replace(fetched(hub, RemoteFiles(docker=f"{host}/ai/tiny")), remote=spec.remote)
    with pytest.raises(ConfigError, match="write REGISTRY/ai/tiny, or set docker_registry"):
        fetched(Hub(folder=tmp_path), RemoteFiles(docker="tiny"))


def test_an_image_with_another_content_than_its_digest(tmp_path: Path) -> None:
    with registry(content=MODEL[:-1] + b"x") as host, pytest.raises(DownloadFailed, match="SHA-256 differs"):
        fetched(Hub(folder=tmp_path, retry_wait_s=0), RemoteFiles(docker=f"{host}/ai/tiny"))
    with registry() as host, pytest.raises(NotFound):
        fetched(Hub(folder=tmp_path, retry_wait_s=0), RemoteFiles(docker=f"{host}/ai/none"))


@pytest.mark.parametrize(
    "text", ["h.x/../y", "h.x/A", "http://h.x/y", "h.x/y:", "h.x/y:../z", "../y", "A", "ai/", "/ai", "gemma3:../x"]
)
def test_what_is_no_image(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:TAG"):
        Image.parse(text)
