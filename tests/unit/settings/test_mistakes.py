"""Invalid settings, YAML, devices and paths raise one `ConfigError` that names the place and the remedy."""

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from server.cli import main
from server.errors import ConfigError
from server.options.flags import FOREIGN, FOREIGN_OPTIONS
from server.options.table import TABLE
from server.settings import check_files, load_settings, model_specs

MODEL = ["-m", "model.gguf"]
LONG = "x" * 300


def outcome(argv: list[str], config: Path | None = None) -> str:
    """Return the message of the ConfigError, or "". Any other exception fails the test."""
    try:
        load_settings(argv, {}, config)
    except ConfigError as error:
        return error.message
    return ""


def test_deeply_nested_json_is_a_config_error() -> None:
    assert "should be a JSON object: " in outcome([*MODEL, "--chat-template-kwargs", "[" * 100_000])


@pytest.mark.parametrize("hosts", ["llm.example.org:9200", "https://b.example", "*.c.org:1", "*c.org", "c.org.", "[x]"])
def test_allowed_hosts_that_match_nothing_are_refused(hosts: str) -> None:
    assert "should be a host name without a port, such as" in outcome([*MODEL, "--allowed-hosts", f"a.example,{hosts}"])
    assert not outcome([*MODEL, "--allowed-hosts", "a_b.Example,*.tail.example,*,10.0.0.1,::1,[::1],localhost"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server: {api_prefix: /\a}", "unacceptable character #x0007"),
        ("models: {a: {path: x, aliases: 2026-13-01}}", "month must be in 1..12"),
        ("[" * 1000, "recursion"),
        ('server: {tools: "\\ud800"}', "line 1: half of a surrogate pair"),
        ('models: {a: {path: x, cpu_range: "\\ud800"}}', "line 1: half of a surrogate pair"),
    ],
)
def test_yaml_parser_failures_are_config_errors(tmp_path: Path, text: str, problem: str) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(text)
    assert outcome([], config).startswith(f"{config}: invalid YAML: ")
    assert problem in outcome([], config)


def test_each_option_name_is_either_supported_or_foreign() -> None:
    foreign = [name for option in FOREIGN_OPTIONS for name in f"{option.names} {option.met}".split()]
    assert len({*TABLE.by_flag, *TABLE.by_env, *foreign}) == len({*TABLE.by_flag, *TABLE.by_env}) + len(foreign)


@examples(deadline=None, max_examples=60)
@given(words=st.lists(st.text(min_size=1) | st.sampled_from(sorted(TABLE.by_flag) + sorted(FOREIGN)), max_size=6))
def test_random_command_lines_raise_at_most_a_config_error(words: list[str]) -> None:
    harmless = [word for word in words if word not in ("--models-dir", "--models-preset", "--config")]
    assert len(outcome([*MODEL, *harmless]).splitlines()) <= 1


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@examples(deadline=None, max_examples=60)
@given(data=st.data())
def test_random_yaml_values_raise_at_most_a_config_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entry = data.draw(st.sampled_from([entry for entry in TABLE if entry.key not in ("models_dir", "models_preset")]))
    value = data.draw(yaml_values)
    section = {entry.key: value}
    document = {"models": {"a": {"path": "x", **section}}} if entry.section == "model" else {"server": section}
    config = tmp_path_factory.mktemp("p") / "pool.yaml"
    config.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    assert len(outcome(MODEL if entry.section == "server" else [], config).splitlines()) <= 1


@pytest.mark.parametrize(
    ("flag", "device", "problem"),
    [
        ("-dev", "cpu", "'cpu' is the CPU, to which nothing is offloaded; "),
        ("-devd", "CUDA77", "'CUDA77' is no device of this machine and build; "),
    ],
)
def test_unknown_devices_are_config_errors_before_any_load(
    tmp_path: Path, flag: str, device: str, problem: str
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    settings = load_settings(["-m", str(file), flag, device], {})
    with pytest.raises(ConfigError) as caught:
        check_files(settings)
    assert f"{flag}: {problem}" in caught.value.message
    assert re.search("none|known: CPU", caught.value.message.rpartition("; ")[2])  # the valid devices


def test_list_devices_prints_the_devices_without_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "missing.gguf", "--list-devices"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Available devices:"
    assert lines
    assert all(line.startswith("  ") and "CPU" not in line.split(":")[0] for line in lines)


def test_check_config_rejects_an_incomplete_split_model_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "kimi").mkdir()
    (tmp_path / "kimi" / "kimi-00001-of-00002.gguf").write_bytes(b"GGUF")
    settings = load_settings(["--models-dir", str(tmp_path)], {})
    with pytest.raises(ConfigError, match=r"models\.kimi\.path: of the 2 parts of the model 1 are missing"):
        check_files(settings, strict=True)


@pytest.mark.parametrize("flags", [["-m", LONG], [*MODEL, "--media-path", LONG], ["--models-dir", LONG]])
def test_paths_that_the_system_rejects_are_config_errors(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"File name too long|is not a folder"):
        check_files(load_settings(flags, {}))


def test_local_path_that_the_system_rejects_counts_as_missing() -> None:
    (spec,) = model_specs(load_settings(["-mu", "http://localhost/m.gguf", "-m", LONG], {}))
    assert spec.missing


def test_unreadable_folder_in_models_dir_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root folder of an ext4 file system contains lost+found."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    iterdir = Path.iterdir

    def iterdir_without_permission(path: Path) -> Iterator[Path]:
        if path.name == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", iterdir_without_permission)
    settings = load_settings(["--models-dir", str(tmp_path)], {})
    assert list(settings.models) == ["a"]
    assert settings.skipped == (f"{tmp_path}/lost+found: may not be read; no model in it is served",)


def test_hidden_files_and_names_that_are_not_utf_8_in_models_dir_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad\udcff").mkdir()
    (tmp_path / "m").mkdir()
    for name in ("a.gguf", "bad\udcff.gguf", ".gguf", "._a.gguf", "bad\udcff/x.gguf", "m/._m.gguf", "m/bad\udcff.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    settings = load_settings(["--models-dir", str(tmp_path)], {})
    assert {model_id: Path(str(spec.path)).name for model_id, spec in settings.models.items()} == {
        "a": "a.gguf",
        "m": "bad\udcff.gguf",
    }
    reason = "its name is not UTF-8; rename it to serve its model"
    assert settings.skipped == (f"{tmp_path}/bad\ufffd: {reason}",) * 2
