"""--models-dir and --models-preset: several models without a YAML."""

from pathlib import Path

import pytest

from server.errors import ConfigError
from server.pool.spec import ModelSpec, ScaledFile
from server.settings import check_files, load_settings, model_specs


def gguf(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"GGUF")


def specs(*argv: str, env: dict[str, str] | None = None) -> dict[str, ModelSpec]:
    return {spec.id: spec for spec in model_specs(load_settings(argv, env or {}))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gguf(tmp_path, "models/one.gguf", "models/gemma/gemma.gguf", "models/gemma/mmproj-F16.gguf")
    return tmp_path / "models"


def preset(tmp_path: Path, text: str) -> str:
    file = tmp_path / "preset.ini"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_folder_of_models_is_served_on_demand(folder: Path) -> None:
    found = specs("--models-dir", str(folder), "-c", "128")
    assert set(found) == {"one", "gemma"}
    assert found["gemma"].mmproj == folder / "gemma" / "mmproj-F16.gguf"
    assert {spec.load for spec in found.values()} == {"on_demand"}
    assert {spec.native.n_ctx for spec in found.values()} == {128}


def test_the_folder_may_come_from_the_environment(folder: Path) -> None:
    assert set(specs(env={"LLAMA_ARG_MODELS_DIR": str(folder)})) == {"one", "gemma"}


def test_a_presets_order_is_flags_sections_common_environment(folder: Path, tmp_path: Path) -> None:
    text = "[*]\nc = 8192\nn-gpu-layers = 8\n[one]\nc = 4096\ntemp = 0.1\n"
    argv = ("--models-dir", str(folder), "--models-preset", preset(tmp_path, text), "--temp", "0.5")
    found = specs(*argv, env={"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_ARG_BATCH": "99"})
    assert (found["one"].native.n_ctx, found["gemma"].native.n_ctx) == (4096, 8192)
    assert {spec.native.n_gpu_layers for spec in found.values()} == {8}
    assert {spec.native.n_batch for spec in found.values()} == {99}
    assert {spec.sampling.temperature for spec in found.values()} == {0.5}


def test_keys_of_a_preset(tmp_path: Path) -> None:
    text = (
        "version = 1\n[m]\nmodel = m.gguf\nload-on-startup = true\njinja = true\nno-mmap = 1\nkv-offload = off\n"
        "LLAMA_ARG_ALIAS = x, y\nnp = 2\nkv-unified = enabled\n"
    )
    model = specs("--models-preset", preset(tmp_path, text))["m"]
    assert (model.load, model.path, model.aliases) == ("startup", Path("m.gguf"), ("x", "y"))
    assert (model.native.mmap, model.native.kv_offload, model.native.n_parallel) == (False, False, 2)
    assert model.native.kv_unified is True


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("ctx-sze = 1", r"preset.ini:2: \[m\] unknown key 'ctx-sze'; did you mean 'ctx-size'"),
        (
            "model-url = x",
            r"preset.ini:2: models.m.model_url: invalid value 'x': should begin with http:// or https://",
        ),
        (
            "model-url = alice:secret@h/m.gguf?t=secret",
            r"model_url: invalid value '\*\*\*\*@h/m.gguf\?t=\*\*\*\*'",
        ),
        ("model-url = ftp://alice:secret@h/m.gguf", r"models.m.model_url: invalid value 'ftp://\*\*\*\*@h/m.gguf'"),
        ("stop-timeout = 5", r"\[m\] 'stop-timeout' is not supported: Llamapool has one shutdown time"),
        ("port = 1", r"\[m\] 'port' is an option of the server, not of a model; remove it"),
        ("offline = false", r"\[m\] 'offline' is an option of the server, not of a model"),
        ("mmap = maybe", r"\[m\] mmap should be true or false .*, not 'maybe'"),
        ("c = many", r"preset.ini:2: models.m.n_ctx: invalid value 'many': should be a valid integer"),
    ],
)
def test_mistakes_name_file_line_section_and_key(tmp_path: Path, key: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        specs("--models-preset", preset(tmp_path, f"[m]\n{key}\nmodel = m.gguf\n"))


def test_a_section_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"preset.ini:2: models.m: path is missing"):
        specs("--models-preset", preset(tmp_path, "[m]\nc = 1\n"))


def test_a_model_that_the_yaml_has_too(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text("server: {models_dir: models}\nmodels: {one: {path: x}}")
    with pytest.raises(ConfigError, match="model 'one' is configured twice; rename one"):
        load_settings([], {}, config)


def test_an_incomplete_model_in_a_folder_does_not_stop_the_others(folder: Path) -> None:
    gguf(folder, "kimi/kimi-00001-of-00002.gguf")
    settings = load_settings(["--models-dir", str(folder)], {})
    [warning] = [text for text in check_files(settings) if "kimi" in text]
    assert "models.kimi.path: of the 2 parts of the model 1 are missing" in warning
    with pytest.raises(ConfigError, match=r"models\.kimi"):
        check_files(settings, strict=True)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--cache-disk-path", "."], ["cache_disk_path"]),
        (["--cache-disk-path", ".", "--cache-disk", "64"], []),
        (["--draft-max", "4", "-td", "1"], ["draft_n_threads", "spec_draft_max"]),
        (["--draft-max", "4", "-md", "models/one.gguf"], []),
        (["--spec-type", "none", "--spec-lookup-size-n", "4"], ["spec_lookup_size"]),
        (["--spec-lookup-size-n", "4"], []),
        (["--spec-ngram-map-k4v-size-n", "4"], ["spec_ngram_map_k4v_size_n"]),
        (["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "4"], []),
        (["--spec-type", "none", "-md", "models/one.gguf"], ["draft_model"]),
    ],
)
def test_what_has_no_effect_beside_other_settings_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], named: list[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    warnings = check_files(load_settings(["-m", "models/one.gguf", *flags], {}))
    found = [text.partition(" has no effect: ")[0].rpartition(" ")[2] for text in warnings]
    assert found == named


def test_a_projector_is_used_unless_told_otherwise(folder: Path) -> None:
    beside = folder / "gemma" / "mmproj-F16.gguf"
    for flags, expected in [([], beside), (["--no-mmproj"], None)]:
        specs = {spec.id: spec for spec in model_specs(load_settings(["--models-dir", str(folder), *flags], {}))}
        assert specs["gemma"].mmproj == expected


def test_a_projector_that_is_none_is_said_so(folder: Path) -> None:
    (folder / "gemma" / "mmproj-F16.gguf").write_bytes(b"text")
    (warning,) = check_files(load_settings(["--models-dir", str(folder)], {}))
    assert "models.gemma.mmproj" in warning
    eyes = folder / "gemma" / "mmproj-F16.gguf"
    named = load_settings(["-m", str(folder / "one.gguf"), "-a", "own", "--mmproj", str(eyes)], {})
    with pytest.raises(ConfigError, match=r"--mmproj: .*mmproj-F16\.gguf"):
        check_files(named)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model is configured"):
        specs("--models-dir", str(tmp_path), "--no-models-cache")


def test_a_preset_takes_lora_and_lora_scaled_together(tmp_path: Path) -> None:
    text = "[m]\nmodel = m.gguf\nlora = a.gguf\nlora-scaled = b.gguf:0.5\ncontrol-vector-layer-range = 1 4\n"
    native = specs("--models-preset", preset(tmp_path, text))["m"].native
    assert native.lora == (ScaledFile(Path("a.gguf"), 1.0), ScaledFile(Path("b.gguf"), 0.5))
    assert native.control_vector_layer_range == (1, 4)
