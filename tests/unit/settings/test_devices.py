"""``device`` and ``draft_device``: where a model is offloaded to, for all of its instances or for each."""

import re
from pathlib import Path

import pytest

from server.cli import main
from server.errors import ConfigError
from server.options.values import device_sets, read_device_sets, read_one_device_set
from server.settings import check_files, load_settings


@pytest.mark.parametrize(
    ("given", "sets"),
    [
        ("CUDA0", ("CUDA0",)),
        ("CUDA0, CUDA1", ("CUDA0,CUDA1",)),
        ("CUDA0,CUDA1 ; none;auto", ("CUDA0,CUDA1", "none", "auto")),
        (["CUDA0,CUDA1", "CUDA2"], ("CUDA0,CUDA1", "CUDA2")),
    ],
)
def test_commas_within_a_set_and_semicolons_between_sets(given: object, sets: tuple[str, ...]) -> None:
    assert read_device_sets(given) == sets


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "has an empty name"),
        ("CUDA0,,CUDA1", "has an empty name"),
        ("CUDA0;", "has an empty name"),
        ([], "should be names with commas"),
        ([0], "should be names with commas"),
        (5, "should be names with commas"),
        ("none,CUDA0", "combines 'none' with other names"),
        ("CUDA0,auto", "combines 'auto' with other names"),
    ],
)
def test_what_is_no_list_of_devices_is_refused(given: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_device_sets(given)


def test_a_draft_model_has_one_set_for_all_instances() -> None:
    assert read_one_device_set("CUDA0,CUDA1") == ("CUDA0,CUDA1",)
    with pytest.raises(ValueError, match="should be one set"):
        read_one_device_set("CUDA0;CUDA1")


def test_none_is_no_device_and_auto_is_left_to_the_library() -> None:
    assert device_sets(("none", "auto", "A,B")) == ((), None, ("A", "B"))


@pytest.mark.parametrize(
    ("flag", "device", "problem"),
    [
        ("-dev", "CUDA77", "'CUDA77' is no device of this machine and build; "),
        ("-dev", "cpu", "'cpu' is the CPU, to which nothing is offloaded; "),
        ("-mmdev", "CUDA77", "'CUDA77' is no device of this machine and build; "),
        ("-devd", "CUDA77", "'CUDA77' is no device of this machine and build; "),
        ("-ot", "x=VRAM", "'VRAM' is no buffer type of this machine and build; known: CPU"),
        ("-otd", "x=VRAM", "'VRAM' is no buffer type of this machine and build; known: CPU"),
    ],
)
def test_devices_that_are_not_there_are_found_before_anything_is_loaded(
    tmp_path: Path, flag: str, device: str, problem: str
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    settings = load_settings(["-m", str(file), flag, device], {})
    with pytest.raises(ConfigError) as caught:
        check_files(settings)
    assert f"{flag}: {problem}" in caught.value.message
    assert re.search("none|known: CPU", caught.value.message.rpartition("; ")[2])  # says what can be chosen


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("LLAMA_ARG_DEVICE", "device"),
        ("MTMD_BACKEND_DEVICE", "mmproj_device"),
        ("LLAMAPOOL_MODELS__M__DEVICE", "device"),
    ],
)
def test_a_device_that_is_not_there_is_said_of_where_it_was_named(tmp_path: Path, variable: str, key: str) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    config = tmp_path / "pool.yaml"
    config.write_text("models:\n  m:\n    path: m.gguf\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^{variable}: 'CUDA77' is no device"):
        check_files(load_settings([], {variable: "CUDA77"}, config))
    config.write_text(f"models:\n  m:\n    path: m.gguf\n    {key}: CUDA77\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"pool\.yaml:4: models\.m\.{key}: 'CUDA77' is no device"):
        check_files(load_settings([], {}, config))


def test_list_devices_prints_what_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "missing.gguf", "--list-devices"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Available devices:"
    assert lines
    assert all(line.startswith("  ") and "CPU" not in line.split(":")[0] for line in lines)
