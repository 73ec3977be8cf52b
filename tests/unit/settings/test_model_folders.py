"""Models on disk, laid out as llama-server expects them."""

from pathlib import Path

import pytest

from server.errors import ConfigError
from server.options.option import SourcedValue
from server.options.presets import LocalModel, problem_of, read_preset, scan_models_dir
from server.settings import check_files, load_settings


def gguf(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"GGUF")


def ini(folder: Path, text: str) -> Path:
    file = folder / "models.ini"
    file.write_text(text, encoding="utf-8")
    return file


def test_single_files_split_folders_and_multimodal_folders(tmp_path: Path) -> None:
    gguf(tmp_path, "llama-Q4_K_M.gguf", "gemma/gemma-Q8_0.gguf", "gemma/mmproj-F16.gguf")
    gguf(tmp_path, "kimi/kimi-00001-of-00002.gguf", "kimi/kimi-00002-of-00002.gguf")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no model")
    gemma = tmp_path / "gemma"
    assert scan_models_dir(tmp_path) == {
        "gemma": LocalModel(gemma / "gemma-Q8_0.gguf", gemma / "mmproj-F16.gguf"),
        "kimi": LocalModel(tmp_path / "kimi" / "kimi-00001-of-00002.gguf"),
        "llama-Q4_K_M": LocalModel(tmp_path / "llama-Q4_K_M.gguf"),
    }


def test_companion_files_are_no_models(tmp_path: Path) -> None:
    gguf(tmp_path, "mmproj-F16.gguf", "mtp-x.gguf", "dspark-x.gguf", "dflash-x.gguf", "only/mmproj.gguf")
    assert scan_models_dir(tmp_path) == {}


def test_a_missing_part_is_the_entrys_problem_and_not_the_others(tmp_path: Path) -> None:
    gguf(tmp_path, "good.gguf", "kimi/kimi-00001-of-00003.gguf", "kimi/kimi-00003-of-00003.gguf")
    found = scan_models_dir(tmp_path)
    assert problem_of(found["good"].path) == ""
    assert problem_of(found["kimi"].path) == "of the 3 parts of the model 1 are missing: kimi-00002-of-00003.gguf"


def test_a_file_and_a_folder_of_the_same_name(tmp_path: Path) -> None:
    gguf(tmp_path, "a.gguf", "a/x.gguf")
    with pytest.raises(ConfigError, match="'a' is both a file and a folder; rename one"):
        scan_models_dir(tmp_path)


def test_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    gguf(tmp_path, "good.gguf", "m-00002-of-00002.gguf")
    (tmp_path / "empty.gguf").touch()
    assert problem_of(tmp_path / "good.gguf") == ""
    assert problem_of(tmp_path / "no.gguf").startswith("no such file")
    assert problem_of(tmp_path).startswith("is not a file")
    assert problem_of(tmp_path / "empty.gguf").startswith("is not a GGUF file")
    assert problem_of(tmp_path / "m-00002-of-00002.gguf").startswith("is part 2 of a split model, name its first part")


def test_a_preset_as_in_llama_servers_readme(tmp_path: Path) -> None:
    file = ini(
        tmp_path,
        "version = 1\n\n; a comment\n[*]\nc = 8192 ; shared\n\n"
        "[ggml-org/MY-MODEL-GGUF:ud-q8_0]\nchat-template = chatml\n# another\nLLAMA_ARG_CTX_SIZE = 4096\n\n"
        "[custom_model]\nmodel = /models/my awesome.gguf\n",
    )
    preset = read_preset(file)
    assert preset == {
        "*": {"c": SourcedValue("8192", f"{file}:5")},
        "ggml-org/MY-MODEL-GGUF:Q8_0": {
            "chat-template": SourcedValue("chatml", f"{file}:8"),
            "LLAMA_ARG_CTX_SIZE": SourcedValue("4096", f"{file}:10"),
        },
        "custom_model": {"model": SourcedValue("/models/my awesome.gguf", f"{file}:13")},
    }


def test_an_incomplete_model_of_a_folder_is_an_error_where_that_is_asked_for(tmp_path: Path) -> None:
    gguf(tmp_path, "one.gguf", "kimi/kimi-00001-of-00002.gguf")
    with pytest.raises(ConfigError, match=r"models\.kimi\.path: of the 2 parts of the model 1 are missing"):
        check_files(load_settings(["--models-dir", str(tmp_path)], {}), strict=True)
