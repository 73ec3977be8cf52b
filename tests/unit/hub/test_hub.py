"""Downloads against a hub on the loopback that is slow, cuts off, lies, forbids, and against a full disk."""

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
from tests.support.stand_in_hub import COMMIT, StandInHub, stand_in_hub

MODEL = b"GGUF" + bytes(range(256)) * 1024
SHA = hashlib.sha256(MODEL).hexdigest()
REPOSITORY = "org/model-GGUF"
OUTSIDE = ["../evil-Q8_0.gguf", "/evil-Q8_0.gguf", "a\\evil-Q8_0.gguf"]


@pytest.fixture
def remote() -> Iterator[StandInHub]:
    with stand_in_hub(
        {REPOSITORY: {"README.md": b"hello", "model-Q8_0.gguf": MODEL, "mmproj-F16.gguf": b"eyes"}}
    ) as hub:
        yield hub


def hub_of(remote: StandInHub, folder: Path, **changes: Any) -> Hub:
    return Hub(folder=folder, **{"endpoint": remote.url, "token": "hf_token\n", "retry_wait_s": 0, **changes})


def pulled(hub: Hub, name: str = REPOSITORY, *siblings: str) -> Files[Path]:
    return hub.pull(Reference.parse(name), siblings=siblings)


def partial_of_model(folder: Path) -> Path:
    partial = folder / "models--org--model-GGUF" / "blobs" / f"{SHA}.incomplete"
    partial.parent.mkdir(parents=True)
    return partial


def test_a_download_lies_where_other_tools_look_for_it(remote: StandInHub, tmp_path: Path) -> None:
    seen: list[FileProgress] = []
    found = pulled(hub_of(remote, tmp_path, report=seen.append))
    base = tmp_path / "models--org--model-GGUF"
    assert found.model == base / "snapshots" / COMMIT / "model-Q8_0.gguf"
    assert found.model.read_bytes() == MODEL
    assert os.readlink(found.model) == f"../../blobs/{SHA}"
    assert (base / "refs" / "main").read_text() == COMMIT
    assert sorted(path.name for path in (base / "blobs").iterdir()) == [SHA]
    assert (seen[0].done, seen[-1].done, seen[-1].total) == (0, len(MODEL), len(MODEL))
    assert {asked.token for asked in remote.asked} == {"hf_token"}


def test_huggingface_hub_finds_it(remote: StandInHub, tmp_path: Path) -> None:
    pulled(hub_of(remote, tmp_path))
    program = (
        "import sys; from huggingface_hub import try_to_load_from_cache, scan_cache_dir;"
        f"print(try_to_load_from_cache('{REPOSITORY}', 'model-Q8_0.gguf', cache_dir=sys.argv[1]));"
        "print([repo.repo_id for repo in scan_cache_dir(sys.argv[1]).repos])"
    )
    said = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == [str(pulled(hub_of(remote, tmp_path)).model), f"['{REPOSITORY}']"]


def test_a_cut_download_goes_on_where_it_ended(remote: StandInHub, tmp_path: Path) -> None:
    """After the hub closed a connection, and after a download of another process."""
    partial = partial_of_model(tmp_path)
    partial.write_bytes(MODEL[:100_000])
    remote.cuts = [50_000]
    found = pulled(hub_of(remote, tmp_path))
    assert found.model
    assert found.model.read_bytes() == MODEL
    first, second = (asked.range for asked in remote.contents_asked())
    assert first == "bytes=100000-"
    assert 100_000 <= int(second[6:-1]) <= 150_000


def test_a_busy_hub_is_asked_again(remote: StandInHub, tmp_path: Path) -> None:
    remote.busy = 2
    assert pulled(hub_of(remote, tmp_path)).model
    remote.busy = 9
    with pytest.raises(DownloadFailed, match="says 503"):
        pulled(hub_of(remote, tmp_path / "other"))


@pytest.mark.parametrize(
    ("wrong", "said"), [(MODEL[:-1] + b"x", "SHA-256 differs"), (b"<html>Please log in</html>", "sent another file")]
)
def test_another_content_than_announced_is_never_there(
    remote: StandInHub, tmp_path: Path, wrong: bytes, said: str
) -> None:
    remote.wrong = wrong
    with pytest.raises(DownloadFailed, match=said) as error:
        pulled(hub_of(remote, tmp_path))
    assert COMMIT[:9] not in error.value.message  # the URL, which may contain a signature
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_the_token_does_not_leave_the_hub(remote: StandInHub, tmp_path: Path) -> None:
    with stand_in_hub(remote.repositories) as elsewhere:
        remote.elsewhere = elsewhere.url.replace("127.0.0.1", "localhost")
        found = pulled(hub_of(remote, tmp_path))
        assert found.model
        assert found.model.read_bytes() == MODEL
        assert [asked.token for asked in elsewhere.asked] == [""]


def test_a_token_that_lies_about_goes_to_no_mirror(
    remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.hub.process.subprocess", subprocess)  # reads HF_* on import, so it cannot be forked
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    pulled(hub_of(remote, tmp_path / "mirror", token=""))
    assert {asked.token for asked in remote.asked} == {""}
    monkeypatch.setenv("HF_ENDPOINT", remote.url)
    remote.asked.clear()
    pulled(hub_of(remote, tmp_path / "own", token=""))
    assert {asked.token for asked in remote.asked} == {"hf_of_somebody"}


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        ({"token": "another"}, DownloadFailed, "set HF_TOKEN"),
        ({"gated": True}, DownloadFailed, "is gated"),
        ({"repositories": {}}, NotFound, "is not on the hub"),
        ({"commit": "../../x"}, DownloadFailed, "lists no branch"),
        ({"lies": {"model-Q8_0.gguf": "../" * 10}}, NotFound, "no GGUF model"),
        ({"repositories": {REPOSITORY: {}}, "names": OUTSIDE}, NotFound, "no GGUF files"),
    ],
)
def test_refusals_say_what_to_do(
    remote: StandInHub, tmp_path: Path, wrong: dict[str, Any], kind: type[LlamapoolError], said: str
) -> None:
    for name, value in wrong.items():
        setattr(remote, name, value)
    with pytest.raises(kind, match=said) as error:
        pulled(hub_of(remote, tmp_path))
    assert "hf_token" not in error.value.message


@pytest.mark.parametrize("token", ["hf_sec\nret", "hf_secr\u00fct"])
def test_a_token_that_is_none_is_not_sent_and_not_shown(remote: StandInHub, tmp_path: Path, token: str) -> None:
    with pytest.raises(DownloadFailed, match="HF_TOKEN") as error:
        pulled(hub_of(remote, tmp_path, token=token))
    assert "sec" not in error.value.message
    assert remote.asked == []


def test_the_disk_is_looked_at_first(remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(DownloadFailed, match=r"needs 0.3 MiB more, and the disk of .* has 0.0 MiB free"):
        pulled(hub_of(remote, tmp_path))
    assert remote.contents_asked() == []


def test_a_slow_download_can_be_stopped_and_gone_on_with(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    with pytest.raises(Cancelled):  # though the hub sends nothing more
        pulled(hub_of(remote, tmp_path, wanted=lambda: not remote.holding.is_set()))
    remote.hold.set()
    remote.hold = None
    assert pulled(hub_of(remote, tmp_path)).model


def test_a_file_that_gets_its_name_while_its_size_is_read_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert WantedFile("a", "", Path("a"), Path("has another name")).partial_bytes == 0


def test_an_unreachable_hub_leaves_what_the_cache_has(remote: StandInHub, tmp_path: Path) -> None:
    first = pulled(hub_of(remote, tmp_path))
    gone = hub_of(remote, tmp_path, endpoint="http://127.0.0.1:1")
    assert pulled(gone) == first
    with pytest.raises(DownloadFailed, match=r"127\.0\.0\.1:1"):
        pulled(gone, "org/other")


@pytest.mark.parametrize("eyes", [True, False])
def test_a_model_comes_with_its_projector_unless_that_is_not_wanted(
    remote: StandInHub, tmp_path: Path, eyes: bool
) -> None:
    fetcher = HubFetcher(hub_of(remote, tmp_path))
    spec = ModelSpec("a", NOT_HERE, remote=RemoteFiles(hf=REPOSITORY, mmproj=eyes))
    fetched = fetcher.fetch(spec, lambda _: None, lambda: True)
    assert fetched == fetcher.found(spec)
    assert (fetched.mmproj and fetched.mmproj.name) == ("mmproj-F16.gguf" if eyes else None)
    own = tmp_path / "own.gguf"
    assert fetcher.found(replace(spec, mmproj=own)).mmproj == own


@pytest.mark.parametrize("names", [{"hf": "org/preset"}, {"hf": REPOSITORY, "draft": "org/preset"}])
def test_a_preset_is_no_model_and_no_draft_model(remote: StandInHub, tmp_path: Path, names: dict[str, Any]) -> None:
    """As one, it would be missing after its download, and downloaded again without an end."""
    remote.repositories["org/preset"] = {"preset.ini": b"[a]\n"}
    spec = ModelSpec("a", NOT_HERE, draft=DraftFile(NOT_HERE, LoadParams()), remote=RemoteFiles(**names))
    with pytest.raises(NotFound, match="'org/preset' is a preset of several models"):
        HubFetcher(hub_of(remote, tmp_path)).fetch(spec, lambda _: None, lambda: True)


@pytest.mark.parametrize("quantization", ["F16", "Q4_0"])
def test_the_projector_goes_with_the_last_model_of_its_repository(
    remote: StandInHub, tmp_path: Path, quantization: str
) -> None:
    files = remote.repositories[REPOSITORY]
    files["model-Q4_0.gguf"] = b"four"
    files[f"mmproj-{quantization}.gguf"] = files.pop("mmproj-F16.gguf")
    hub = hub_of(remote, tmp_path)
    for name in (f"{REPOSITORY}:Q8_0", f"{REPOSITORY}:Q4_0"):
        pulled(hub, name, "mmproj")
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q4_0")) == len(b"four")
    found = hub.find(Reference.parse(f"{REPOSITORY}:Q8_0"))
    assert found
    assert "mmproj" in found.siblings
    hub.remove(Reference.parse(f"{REPOSITORY}:Q8_0"))
    assert not (tmp_path / "models--org--model-GGUF").exists()


def test_a_cancelled_request_does_not_wait_for_a_silent_hub(remote: StandInHub, tmp_path: Path) -> None:
    remote.silent = "/refs"
    with pytest.raises(Cancelled):
        pulled(hub_of(remote, tmp_path, wanted=lambda: not remote.holding.is_set()))
    assert not remote.ended.is_set()


def test_small_files_and_split_models(remote: StandInHub, tmp_path: Path) -> None:
    remote.lfs = False
    remote.repositories["org/split"] = {f"m-F16-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}
    remote.repositories["org/preset"] = {"preset.ini": b"[a]\n"}
    model = pulled(hub_of(remote, tmp_path), "org/split:F16").model
    assert model
    assert model.with_name("m-F16-00002-of-00002.gguf").read_bytes() == b"GGUF2"
    preset = pulled(hub_of(remote, tmp_path), "org/preset").preset
    assert preset
    assert preset.read_bytes() == b"[a]\n"
    (listed,) = hub_of(remote, tmp_path).cache.models()
    assert (str(listed.reference), listed.size) == ("org/split:F16", 10)


def test_a_removed_model_frees_only_what_nobody_else_has(remote: StandInHub, tmp_path: Path) -> None:
    remote.repositories[REPOSITORY]["model-Q4_0.gguf"] = b"four"
    hub = hub_of(remote, tmp_path)
    pulled(hub, f"{REPOSITORY}:Q8_0")
    pulled(hub, f"{REPOSITORY}:Q4_0")
    assert hub.remove(Reference.parse(f"{REPOSITORY}:q8_0")) == len(MODEL)
    assert [str(model.reference) for model in hub.cache.models()] == [f"{REPOSITORY}:Q4_0"]
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q8_0")) == 0
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q4_0")) > 0
    assert hub.cache.models() == []
    assert not (tmp_path / "models--org--model-GGUF").exists()


def test_what_was_pulled_of_an_older_commit_is_there_until_it_is_removed(remote: StandInHub, tmp_path: Path) -> None:
    """In its newest form, wherever that is; a split model is never of two commits; presets are of the last one."""
    files = remote.repositories[REPOSITORY]
    files |= {f"big-F16-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}
    hub = hub_of(remote, tmp_path)
    snapshots = tmp_path / "models--org--model-GGUF" / "snapshots"
    pulled(hub, f"{REPOSITORY}:F16")
    old = pulled(hub, f"{REPOSITORY}:Q8_0").model
    (snapshots / COMMIT / "preset.ini").write_text("[a]")
    remote.commit = "2" * 40
    files["model-Q8_0.gguf"] = new = MODEL + b"new"
    files["model-Q4_0.gguf"] = b"GGUF"
    found = pulled(hub, f"{REPOSITORY}:Q8_0").model
    assert old == snapshots / COMMIT / "model-Q8_0.gguf"
    assert found == snapshots / remote.commit / "model-Q8_0.gguf"
    assert hub.find(Reference.parse(REPOSITORY)) == Files((found,))
    (snapshots / remote.commit / "big-F16-00001-of-00002.gguf").write_bytes(b"another tool's beginning")
    assert [(str(each.reference), each.size) for each in hub.cache.models()] == [
        (f"{REPOSITORY}:F16", 10),
        (f"{REPOSITORY}:Q8_0", len(new)),
    ]
    split = tuple(snapshots / COMMIT / f"big-F16-0000{i}-of-00002.gguf" for i in (1, 2))
    assert hub.find(Reference.parse(f"{REPOSITORY}:F16")) == Files(split)
    remote.commit = "3" * 40
    pulled(hub, f"{REPOSITORY}:Q4_0")
    assert hub.find(Reference.parse(f"{REPOSITORY}:Q8_0")) == Files((found,))
    assert hub.remove(Reference.parse(f"{REPOSITORY}:Q8_0")) == len(MODEL) + len(new)
    assert hub.find(Reference.parse(f"{REPOSITORY}:Q8_0")) is None
    assert [each.reference.tag for each in hub.cache.models()] == ["F16", "Q4_0"]


def test_a_model_that_is_removed_while_the_cache_is_listed_is_not_there(
    remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hub_of(remote, tmp_path)
    model = pulled(hub).model
    assert model

    def removed(name: str) -> bool:
        model.resolve().unlink()
        return True

    monkeypatch.setattr("server.hub.cache.is_model", removed)
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
def test_the_cache_is_the_one_of_other_tools(env: dict[str, str], folder: str) -> None:
    assert cache_folder(env) == Path(folder)


def test_a_cache_that_can_not_be_written_is_a_failure_of_the_download(remote: StandInHub, tmp_path: Path) -> None:
    (tmp_path / "models--org--model-GGUF").write_text("in the way")
    with pytest.raises(DownloadFailed, match="cannot be written"):
        pulled(hub_of(remote, tmp_path))
