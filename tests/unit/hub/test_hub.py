"""Downloads from a hub on loopback that is slow, unreachable, wrong or forbidding, and the cache of downloads."""

import hashlib
import os
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.errors import DownloadFailed, LlamapoolError, NotFound
from server.hub.cache import cache_folder
from server.hub.hub import Hub, HubFetcher
from server.hub.names import Files, Reference
from server.hub.process import Cancelled, WantedFile
from server.pool.protocols import FileProgress
from server.pool.spec import NOT_HERE, DraftFile, LoadParams, ModelSpec, RemoteFiles
from tests.support.fake_hub import COMMIT, FakeHub, fake_hub

MODEL = b"GGUF" + bytes(range(256)) * 1024
SHA = hashlib.sha256(MODEL).hexdigest()
REPOSITORY = "org/model-GGUF"
OUTSIDE = ["../evil-Q8_0.gguf", "/evil-Q8_0.gguf", "a\\evil-Q8_0.gguf"]


@pytest.fixture
def remote() -> Iterator[FakeHub]:
    with fake_hub({REPOSITORY: {"README.md": b"hello", "model-Q8_0.gguf": MODEL, "mmproj-F16.gguf": b"mmproj"}}) as hub:
        yield hub


def hub_of(remote: FakeHub, folder: Path, **changes: Any) -> Hub:
    return Hub(folder=folder, **{"endpoint": remote.url, "token": "hf_token\n", "retry_wait_s": 0, **changes})


def pull(hub: Hub, name: str = REPOSITORY, *siblings: str) -> Files[Path]:
    return hub.pull(Reference.parse(name), siblings=siblings)


def test_download_has_the_layout_of_the_shared_cache(remote: FakeHub, tmp_path: Path) -> None:
    reports: list[FileProgress] = []
    found = pull(hub_of(remote, tmp_path, report=reports.append))
    base = tmp_path / "models--org--model-GGUF"
    assert found.model == base / "snapshots" / COMMIT / "model-Q8_0.gguf"
    assert found.model.read_bytes() == MODEL
    assert os.readlink(found.model) == f"../../blobs/{SHA}"
    assert (base / "refs" / "main").read_text() == COMMIT
    assert sorted(path.name for path in (base / "blobs").iterdir()) == [SHA]
    assert (reports[0].done, reports[-1].done, reports[-1].total) == (0, len(MODEL), len(MODEL))
    assert {request.token for request in remote.requests} == {"hf_token"}


def test_huggingface_hub_finds_a_download(remote: FakeHub, tmp_path: Path) -> None:
    pull(hub_of(remote, tmp_path))
    program = (
        "import sys; from huggingface_hub import try_to_load_from_cache, scan_cache_dir;"
        f"print(try_to_load_from_cache('{REPOSITORY}', 'model-Q8_0.gguf', cache_dir=sys.argv[1]));"
        "print([repo.repo_id for repo in scan_cache_dir(sys.argv[1]).repos])"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(pull(hub_of(remote, tmp_path)).model), f"['{REPOSITORY}']"]


def test_download_resumes_after_a_closed_connection_and_after_another_process(remote: FakeHub, tmp_path: Path) -> None:
    partial = tmp_path / "models--org--model-GGUF" / "blobs" / f"{SHA}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(MODEL[:100_000])
    remote.content_limits = [50_000]
    found = pull(hub_of(remote, tmp_path))
    assert found.model
    assert found.model.read_bytes() == MODEL
    first, second = (request.range for request in remote.content_requests())
    assert first == "bytes=100000-"
    assert 100_000 <= int(second[6:-1]) <= 150_000


def test_requests_to_a_busy_hub_are_retried(remote: FakeHub, tmp_path: Path) -> None:
    remote.busy = 2
    assert pull(hub_of(remote, tmp_path)).model
    remote.busy = 9
    with pytest.raises(DownloadFailed, match="says 503"):
        pull(hub_of(remote, tmp_path / "other"))


@pytest.mark.parametrize(
    ("wrong", "message"), [(MODEL[:-1] + b"x", "SHA-256 differs"), (b"<html>Please log in</html>", "sent another file")]
)
def test_content_with_another_hash_is_never_stored(remote: FakeHub, tmp_path: Path, wrong: bytes, message: str) -> None:
    remote.wrong = wrong
    with pytest.raises(DownloadFailed, match=message) as error:
        pull(hub_of(remote, tmp_path))
    assert COMMIT[:9] not in error.value.message  # of the URL, which may contain a signature
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_redirect_to_another_host_does_not_get_the_token(remote: FakeHub, tmp_path: Path) -> None:
    with fake_hub(remote.repositories) as elsewhere:
        remote.redirect_to = elsewhere.url.replace("127.0.0.1", "localhost")
        found = pull(hub_of(remote, tmp_path))
        assert found.model
        assert found.model.read_bytes() == MODEL
        assert [request.token for request in elsewhere.requests] == [""]


def test_token_of_the_environment_is_not_sent_to_a_mirror(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.hub.process.subprocess", subprocess)  # reads HF_* on import, so it cannot be forked
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    pull(hub_of(remote, tmp_path / "mirror", token=""))
    assert {request.token for request in remote.requests} == {""}
    monkeypatch.setenv("HF_ENDPOINT", remote.url)
    remote.requests.clear()
    pull(hub_of(remote, tmp_path / "own", token=""))
    assert {request.token for request in remote.requests} == {"hf_environment"}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"token": "another"}, DownloadFailed, "set HF_TOKEN"),
        ({"gated": True}, DownloadFailed, "is gated"),
        ({"repositories": {}}, NotFound, "is not on the hub"),
        ({"commit": "../../x"}, DownloadFailed, "lists no branch"),
        ({"wrong_hashes": {"model-Q8_0.gguf": "../" * 10}}, NotFound, "no GGUF model"),
        ({"repositories": {REPOSITORY: {}}, "names": OUTSIDE}, NotFound, "no GGUF files"),
    ],
)
def test_failed_download_names_the_cause_and_hides_the_token(
    remote: FakeHub, tmp_path: Path, wrong: dict[str, Any], error: type[LlamapoolError], message: str
) -> None:
    for name, value in wrong.items():
        setattr(remote, name, value)
    with pytest.raises(error, match=message) as raised:
        pull(hub_of(remote, tmp_path))
    assert "hf_token" not in raised.value.message


@pytest.mark.parametrize("token", ["hf_sec\nret", "hf_secr\u00fct"])
def test_invalid_token_is_neither_sent_nor_shown(remote: FakeHub, tmp_path: Path, token: str) -> None:
    with pytest.raises(DownloadFailed, match="HF_TOKEN") as error:
        pull(hub_of(remote, tmp_path, token=token))
    assert "sec" not in error.value.message
    assert remote.requests == []


def test_free_disk_space_is_checked_before_the_download(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(DownloadFailed, match=r"needs 0.3 MiB more, and the disk of .* has 0.0 MiB free"):
        pull(hub_of(remote, tmp_path))
    assert remote.content_requests() == []


def test_stalled_download_can_be_cancelled_and_resumed(remote: FakeHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    with pytest.raises(Cancelled):
        pull(hub_of(remote, tmp_path, wanted=lambda: not remote.holding.is_set()))
    remote.hold.set()
    remote.hold = None
    assert pull(hub_of(remote, tmp_path)).model


def test_partial_file_renamed_while_its_size_is_read_counts_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert WantedFile("a", "", Path("a"), Path("renamed")).partial_bytes == 0


def test_cached_models_are_used_if_the_hub_is_unreachable(remote: FakeHub, tmp_path: Path) -> None:
    first = pull(hub_of(remote, tmp_path))
    unreachable = hub_of(remote, tmp_path, endpoint="http://127.0.0.1:1")
    assert pull(unreachable) == first
    with pytest.raises(DownloadFailed, match=r"127\.0\.0\.1:1"):
        pull(unreachable, "org/other")


@pytest.mark.parametrize("mmproj", [True, False])
def test_model_is_fetched_with_its_projector_unless_disabled(remote: FakeHub, tmp_path: Path, mmproj: bool) -> None:
    fetcher = HubFetcher(hub_of(remote, tmp_path))
    spec = ModelSpec("a", NOT_HERE, remote=RemoteFiles(hf=REPOSITORY, mmproj=mmproj))
    fetched = fetcher.fetch(spec, lambda _: None, lambda: True)
    assert fetched == fetcher.found(spec)
    assert (fetched.mmproj and fetched.mmproj.name) == ("mmproj-F16.gguf" if mmproj else None)
    own = tmp_path / "own.gguf"
    assert fetcher.found(replace(spec, mmproj=own)).mmproj == own


@pytest.mark.parametrize("names", [{"hf": "org/preset"}, {"hf": REPOSITORY, "draft": "org/preset"}])
def test_preset_cannot_be_used_as_a_model(remote: FakeHub, tmp_path: Path, names: dict[str, Any]) -> None:
    """The model's file would be missing after the download, which would be repeated without end."""
    remote.repositories["org/preset"] = {"preset.ini": b"[a]\n"}
    spec = ModelSpec("a", NOT_HERE, draft=DraftFile(NOT_HERE, LoadParams()), remote=RemoteFiles(**names))
    with pytest.raises(NotFound, match="'org/preset' is a preset of several models"):
        HubFetcher(hub_of(remote, tmp_path)).fetch(spec, lambda _: None, lambda: True)


@pytest.mark.parametrize("quantization", ["F16", "Q4_0"])
def test_projector_is_removed_with_the_last_model_of_its_repository(
    remote: FakeHub, tmp_path: Path, quantization: str
) -> None:
    files = remote.repositories[REPOSITORY]
    files["model-Q4_0.gguf"] = b"four"
    files[f"mmproj-{quantization}.gguf"] = files.pop("mmproj-F16.gguf")
    hub = hub_of(remote, tmp_path)
    for name in (f"{REPOSITORY}:Q8_0", f"{REPOSITORY}:Q4_0"):
        pull(hub, name, "mmproj")
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q4_0")) == len(b"four")
    found = hub.find(Reference.parse(f"{REPOSITORY}:Q8_0"))
    assert found
    assert "mmproj" in found.siblings
    hub.remove(Reference.parse(f"{REPOSITORY}:Q8_0"))
    assert not (tmp_path / "models--org--model-GGUF").exists()


def test_cancelled_download_does_not_wait_for_a_silent_hub(remote: FakeHub, tmp_path: Path) -> None:
    remote.silent = "/refs"
    with pytest.raises(Cancelled):
        pull(hub_of(remote, tmp_path, wanted=lambda: not remote.holding.is_set()))
    assert not remote.ended.is_set()


def test_split_models_and_files_without_lfs_are_downloaded(remote: FakeHub, tmp_path: Path) -> None:
    remote.lfs = False
    remote.repositories["org/split"] = {f"m-F16-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}
    remote.repositories["org/preset"] = {"preset.ini": b"[a]\n"}
    model = pull(hub_of(remote, tmp_path), "org/split:F16").model
    assert model
    assert model.with_name("m-F16-00002-of-00002.gguf").read_bytes() == b"GGUF2"
    preset = pull(hub_of(remote, tmp_path), "org/preset").preset
    assert preset
    assert preset.read_bytes() == b"[a]\n"
    (listed,) = hub_of(remote, tmp_path).cache.models()
    assert (str(listed.reference), listed.size) == ("org/split:F16", 10)


def test_remove_keeps_blobs_that_another_model_uses(remote: FakeHub, tmp_path: Path) -> None:
    remote.repositories[REPOSITORY]["model-Q4_0.gguf"] = b"four"
    hub = hub_of(remote, tmp_path)
    pull(hub, f"{REPOSITORY}:Q8_0")
    pull(hub, f"{REPOSITORY}:Q4_0")
    assert hub.remove(Reference.parse(f"{REPOSITORY}:q8_0")) == len(MODEL)
    assert [str(model.reference) for model in hub.cache.models()] == [f"{REPOSITORY}:Q4_0"]
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q8_0")) == 0
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q4_0")) > 0
    assert hub.cache.models() == []
    assert not (tmp_path / "models--org--model-GGUF").exists()


def test_model_of_an_older_commit_is_found_until_it_is_removed(remote: FakeHub, tmp_path: Path) -> None:
    """The newest cached commit of each model counts. A split model is never mixed from two commits. A preset is used
    only from the last commit.
    """
    files = remote.repositories[REPOSITORY]
    files |= {f"big-F16-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}
    hub = hub_of(remote, tmp_path)
    snapshots = tmp_path / "models--org--model-GGUF" / "snapshots"
    pull(hub, f"{REPOSITORY}:F16")
    old = pull(hub, f"{REPOSITORY}:Q8_0").model
    (snapshots / COMMIT / "preset.ini").write_text("[a]")
    remote.commit = "2" * 40
    files["model-Q8_0.gguf"] = new = MODEL + b"new"
    files["model-Q4_0.gguf"] = b"GGUF"
    found = pull(hub, f"{REPOSITORY}:Q8_0").model
    assert old == snapshots / COMMIT / "model-Q8_0.gguf"
    assert found == snapshots / remote.commit / "model-Q8_0.gguf"
    assert hub.find(Reference.parse(REPOSITORY)) == Files((found,))
    (snapshots / remote.commit / "big-F16-00001-of-00002.gguf").write_bytes(b"written by another tool")
    assert [(str(each.reference), each.size) for each in hub.cache.models()] == [
        (f"{REPOSITORY}:F16", 10),
        (f"{REPOSITORY}:Q8_0", len(new)),
    ]
    split = tuple(snapshots / COMMIT / f"big-F16-0000{i}-of-00002.gguf" for i in (1, 2))
    assert hub.find(Reference.parse(f"{REPOSITORY}:F16")) == Files(split)
    remote.commit = "3" * 40
    pull(hub, f"{REPOSITORY}:Q4_0")
    assert hub.find(Reference.parse(f"{REPOSITORY}:Q8_0")) == Files((found,))
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q8_0")) == len(MODEL) + len(new)
    assert hub.find(Reference.parse(f"{REPOSITORY}:Q8_0")) is None
    assert [each.reference.tag for each in hub.cache.models()] == ["F16", "Q4_0"]


def test_model_removed_while_the_cache_is_listed_is_left_out(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hub_of(remote, tmp_path)
    model = pull(hub).model
    assert model

    def remove_model(name: str) -> bool:
        model.resolve().unlink()
        return True

    monkeypatch.setattr("server.hub.cache.is_model", remove_model)
    assert hub.cache.models() == []


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"LLAMA_CACHE": "/l", "HF_HUB_CACHE": "/h", "HF_HOME": "/home"}, "/l"),
        ({"HF_HUB_CACHE": "/h", "HF_HOME": "/home"}, "/h"),
        ({"HF_HOME": "/home", "XDG_CACHE_HOME": "/x"}, "/home/hub"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/me"}, "/x/huggingface/hub"),
        ({"HOME": "/me"}, "/me/.cache/huggingface/hub"),
    ],
)
def test_cache_folder_is_that_of_llama_cpp_and_huggingface_hub(env: dict[str, str], folder: str) -> None:
    assert cache_folder(env) == Path(folder)


def test_download_fails_if_the_cache_cannot_be_written(remote: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "models--org--model-GGUF").write_text("a file instead of a folder")
    with pytest.raises(DownloadFailed, match="cannot be written"):
        pull(hub_of(remote, tmp_path))
