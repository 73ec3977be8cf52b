"""LoRA adapters, control vectors and the folder of saved slots in the settings."""

from pathlib import Path

import pytest

from server.errors import ConfigError
from server.pool.spec import LoadParams, ScaledFile
from server.settings import check_files, load_settings, model_specs

MODEL = ["-m", "model.gguf"]


def native(*argv: str, env: dict[str, str] | None = None, config: Path | None = None) -> LoadParams:
    [spec] = model_specs(load_settings(argv, env or {}, config))
    return spec.native


def files(*pairs: tuple[str, float]) -> tuple[ScaledFile, ...]:
    return tuple(ScaledFile(Path(path), scale) for path, scale in pairs)


def test_flags_add_up_in_their_order_which_gives_the_ids() -> None:
    line = "--lora a.gguf --lora-scaled b.gguf:0.5,c.gguf:-2 --lora d.gguf,e.gguf"
    found = native(*MODEL, *line.split())
    assert found.lora == files(("a.gguf", 1), ("b.gguf", 0.5), ("c.gguf", -2), ("d.gguf", 1), ("e.gguf", 1))
    line = "--control-vector-scaled a.gguf:0.5 --control-vector b.gguf --lora_init_without_apply"
    found = native(*MODEL, *line.split())
    assert found.control_vectors == files(("a.gguf", 0.5), ("b.gguf", 1))
    assert found.lora_init_without_apply


def test_a_colon_in_a_name_and_quotes_are_no_trouble() -> None:
    found = native(*MODEL, "--lora-scaled", 'a:b.gguf:0.5,"c,d.gguf:1"')
    assert found.lora == files(("a:b.gguf", 0.5), ("c,d.gguf", 1))


@pytest.mark.parametrize("values", [["1", "20"], ["-1", "0"]])
def test_the_layer_range_takes_two_words(values: list[str]) -> None:
    found = native(*MODEL, "--control-vector-layer-range", *values, "-np", "3")
    assert found.control_vector_layer_range == (int(values[0]), int(values[1]))
    assert found.n_parallel == 3


def test_yaml_takes_paths_and_mappings_relative_to_its_folder(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(
        "models:\n  m:\n    path: m.gguf\n    lora: [one.gguf, {path: sub/two.gguf, scale: 0.5}, /abs/three.gguf]\n"
        "    control_vectors: {path: ../v.gguf, scale: -1}\n    control_vector_layer_range: [2, 8]\n"
    )
    found = native(config=config)
    expected = (tmp_path / "one.gguf", 1.0), (tmp_path / "sub/two.gguf", 0.5), (Path("/abs/three.gguf"), 1.0)
    assert found.lora == tuple(ScaledFile(*pair) for pair in expected)
    assert found.control_vectors == (ScaledFile(tmp_path.parent / "v.gguf", -1.0),)
    assert found.control_vector_layer_range == (2, 8)
    config.write_text("models: {m: {path: m.gguf, lora: one.gguf}}\nserver: {slot_save_path: slots}")
    assert native(config=config).lora == (ScaledFile(tmp_path / "one.gguf"),)
    assert load_settings([], {}, config).server.slot_save_path == tmp_path / "slots"


def test_a_flag_replaces_the_yamls_list(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text("defaults: {lora: [one.gguf]}\nmodels: {m: {path: m.gguf}}")
    assert native("--lora", "two.gguf", config=config).lora == files(("two.gguf", 1))


def test_a_variable_names_paths() -> None:
    found = native(*MODEL, env={"LLAMAPOOL_DEFAULTS__LORA": "a.gguf,b.gguf"})
    assert found.lora == files(("a.gguf", 1), ("b.gguf", 1))


def test_a_preset_takes_both_forms_together(tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    lines = ("[m]", "model = m.gguf", "lora = a.gguf", "lora-scaled = b.gguf:0.5", "control-vector-layer-range = 1 4")
    preset.write_text("\n".join(lines))
    found = native("--models-preset", str(preset))
    assert found.lora == files(("a.gguf", 1), ("b.gguf", 0.5))
    assert found.control_vector_layer_range == (1, 4)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--lora-scaled", "a.gguf"], "should have a number within"),
        (["--lora-scaled", "a.gguf:x"], "as scale, as in FILE:0.5"),
        (["--lora-scaled", "a.gguf:nan"], "as scale"),
        (["--lora-scaled", "a.gguf:1e9"], "within -1e+06 and 1e+06"),
        (["--lora-scaled", ":1"], "should be a list of paths, or of mappings of path and scale"),
        (["--control-vector-layer-range", "1"], "--control-vector-layer-range needs 2 values"),
        (
            ["--control-vector-layer-range", "1", "x"],
            "--control-vector-layer-range: invalid value '1 x'",
        ),
    ],
)
def test_mistakes_of_flags(argv: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings([*MODEL, *argv], {})
    assert expected in caught.value.message


@pytest.mark.parametrize(
    "value", ["5", "[5]", "[{scale: 1}]", "{path: a, scale: true}", "{path: a, size: 1}", "[[a]]", "''", "[null]"]
)
def test_mistakes_of_the_yaml_name_their_line(tmp_path: Path, value: str) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(f"models:\n  m:\n    path: m.gguf\n    lora: {value}\n")
    with pytest.raises(ConfigError, match=r"pool\.yaml:4: models\.m\.lora: invalid value .*: should "):
        load_settings([], {}, config)


def test_files_that_are_missing_stop_the_start(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    for flag in ("--lora", "--control-vector"):
        settings = load_settings(["-m", str(model), flag, str(tmp_path / "none.gguf")], {})
        with pytest.raises(ConfigError, match=rf"{flag}: no such file: .*none\.gguf; check the path"):
            check_files(settings)
    settings = load_settings(["-m", str(model), "--slot-save-path", str(tmp_path / "none")], {})
    with pytest.raises(ConfigError, match=r"server\.slot_save_path: .*none is not a folder; create it"):
        check_files(settings)
    assert check_files(load_settings(["-m", str(model), "--slot-save-path", str(tmp_path)], {})) == []
