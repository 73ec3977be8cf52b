"""``device`` and ``draft_device``: where a model is offloaded to, for all of its instances or for each."""

import re
from pathlib import Path

import pytest

from server.cli import main
from server.errors import ConfigError
from server.settings import check_files, load_settings


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
