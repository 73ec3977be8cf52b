"""The sources of settings and their precedence, default configurations, and that each option has an effect."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from server.engine.params import LOOKUP, EngineParams
from server.engine.request import SamplingParams
from server.errors import ConfigError
from server.options.server import ServerSettings
from server.options.table import TABLE
from server.pool.spec import ChatParams, LoadParams
from server.settings import DEFAULT_CONFIGS, Settings, load_settings, model_specs

MODEL = ["-m", "model.gguf"]
ROOT = Path(__file__).parents[3]


def write(folder: Path, text: str, name: str = "pool.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def settings(*argv: str, env: dict[str, str] | None = None, config: Path | None = None) -> Settings:
    return load_settings(argv, env or {}, config)


@pytest.mark.parametrize("name", ["m.gguf", ""])
def test_model_fields_that_clients_can_read_contain_no_credentials(name: str) -> None:
    """GET /models returns the id, the flags and the preset section of a model."""
    url = f"https://alice:secret@h/{name}?token=secret"
    [model] = model_specs(settings("-mu", url))
    assert model.remote is not None
    assert model.remote.url == url
    assert f"https://****@h/{name}?token=****" in model.args
    assert "secret" not in " ".join([model.id, *model.args, model.preset])


def test_default_configuration_is_served_if_no_model_is_given() -> None:
    model, embedder, ranker = model_specs(settings())
    assert (ranker.id, ranker.load, ranker.configured_for("rerank")) == ("demo-rerank", "on_demand", True)
    assert (embedder.id, embedder.aliases, embedder.load) == ("demo-embed", ("text-embedding-3-small",), "on_demand")
    assert (model.id, model.aliases, model.load) == ("demo", ("gpt-4o-mini",), "startup")
    assert model.path == ROOT / "models" / "demo.gguf"
    assert (model.native.n_ctx, model.native.n_parallel) == (16384, 4)


def test_settings_ignore_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, pydantic-settings reads these variables of the process."""
    monkeypatch.setenv("SERVER", '{"port": 1}')
    monkeypatch.setenv("SERVER__PORT", "1")
    monkeypatch.setenv("LLAMAPOOL_SERVER__PORT", "1")
    assert settings(*MODEL).server.port == 8080
    assert Settings(server=ServerSettings(port=5)).server.port == 5
    assert Settings().server.port == 8080


def test_sources_override_each_other_in_the_documented_order(tmp_path: Path) -> None:
    model: dict[str, Any] = {"path": "m"}
    document: dict[str, Any] = {"models": {"m": model}}
    env: dict[str, Any] = {}
    for n_batch, (target, key, value) in enumerate(
        (
            (document, "defaults", {"n_batch": 1}),
            (env, "LLAMAPOOL_DEFAULTS__N_BATCH", "2"),
            (model, "n_batch", 3),
            (env, "LLAMA_ARG_BATCH", "4"),
            (env, "LLAMAPOOL_MODELS__M__N_BATCH", "5"),
        ),
        1,
    ):
        target[key] = value
        config = write(tmp_path, json.dumps(document))
        assert settings(env=env, config=config).models["m"].n_batch == n_batch
    assert settings("-b", "6", env=env, config=config).models["m"].n_batch == 6


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Emulate an installed package: it has no config folder, the working directory does. Returns the file."""
    monkeypatch.setattr("server.settings.DEFAULT_CONFIGS", (tmp_path / "none.yaml", DEFAULT_CONFIGS[1]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    return write(tmp_path / "config", "models: {here: {path: ../models/here.gguf}}\n", "default.yaml")


def test_installed_package_reads_the_default_configuration_of_the_working_directory(installed: Path) -> None:
    [model] = model_specs(settings())
    assert (model.id, model.path) == ("here", installed.parents[1].resolve() / "models" / "here.gguf")


def test_static_files_path_does_not_replace_the_default_configuration(installed: Path) -> None:
    """server.path and the path of a model are different options."""
    assert [model.id for model in model_specs(settings("--path", str(installed.parent)))] == ["here"]


def test_model_in_the_environment_replaces_the_default_configuration(installed: Path) -> None:
    [model] = model_specs(settings(env={"LLAMA_ARG_MODEL": "/models/other.gguf", "LLAMA_ARG_HOST": "0.0.0.0"}))
    assert (model.id, model.load) == ("/models/other.gguf", "startup")


def test_model_cache_is_served_if_there_is_no_configuration(installed: Path) -> None:
    installed.unlink()
    assert settings().models == {}
    with pytest.raises(ConfigError, match="no model is configured: give -m FILE"):
        settings("--no-models-cache")


def test_keys_of_api_key_file_are_added_to_api_keys(tmp_path: Path) -> None:
    file = write(tmp_path, "# comment\nk1\n\nk2\n", "keys")
    assert settings(*MODEL, "--api-key", "k0", "--api-key-file", str(file)).server.all_api_keys() == ("k0", "k1", "k2")


def test_each_internal_parameter_has_an_option() -> None:
    derived = {
        ChatParams: {"template", "template_kwargs"},
        EngineParams: {"cpus", "spec_ngram", "spec_synth", "cache_disk_secret"},
        LoadParams: {
            *("devices", "placement", "tensor_overrides", "metadata_overrides", "n_ctx_slot", "mtp", "fit_ubatch")
        },
    }
    names = {key for section, key in TABLE.entries if section == "model"}
    for params in (LoadParams, EngineParams, SamplingParams, ChatParams):
        assert {field.name for field in fields(params)} - names <= derived.get(params, set()), params


def test_option_defaults_equal_the_defaults_of_the_internal_parameters() -> None:
    (spec,) = model_specs(settings(*MODEL))
    assert spec.native == LoadParams()
    assert spec.engine == EngineParams(spec_type=LOOKUP)
    assert spec.sampling == SamplingParams()
    assert spec.chat == ChatParams(template_kwargs={"preserve_reasoning": True})


def test_flags_and_variables_of_options_are_unique() -> None:
    flags = [flag for entry in TABLE for flag in (*entry.flags, *entry.constants)]
    variables = [entry.env for entry in TABLE if entry.env]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))
    assert all(entry.description for entry in TABLE)


numeric = [entry for entry in TABLE if type(entry.default) in (int, float) and entry.section == "model"]


@examples(deadline=None, max_examples=60)
@given(data=st.data())
def test_numbers_mean_the_same_as_flag_variable_and_yaml_value(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entry = data.draw(st.sampled_from(numeric))
    numbers = st.integers(1, 2) if isinstance(entry.default, int) else st.floats(0.1, 0.9)
    text = str(data.draw(numbers))
    config = write(tmp_path_factory.mktemp("p"), f"models: {{model.gguf: {{path: m, {entry.key}: {text}}}}}\n")
    env = {f"LLAMAPOOL_DEFAULTS__{entry.key.upper()}": text}
    try:
        from_flag = settings(*MODEL, entry.flags[0], text)
    except ConfigError:
        with pytest.raises(ConfigError):
            settings(config=config)
        return
    values = [
        getattr(from_flag.models["model.gguf"], entry.key),
        getattr(settings(*MODEL, env=env).models["model.gguf"], entry.key),
        getattr(settings(config=config).models["model.gguf"], entry.key),
    ]
    assert values == [values[0]] * 3


def test_demo_model_loads_on_demand_if_the_cache_has_models(tmp_path: Path) -> None:
    def loads() -> dict[str, str]:
        found = settings(env={"LLAMA_CACHE": str(tmp_path)})
        return {model_id: model.load for model_id, model in found.models.items() if "embed" not in model_id}

    assert loads()["demo"] == "startup"
    commit = tmp_path / "models--org--name" / "snapshots" / ("1" * 40)
    commit.mkdir(parents=True)
    (commit / "name-Q8_0.gguf").write_bytes(b"GGUF")
    (commit.parents[1] / "refs").mkdir()
    (commit.parents[1] / "refs" / "main").write_text("1" * 40)
    assert (loads()["demo"], loads()["org/name:Q8_0"]) == ("on_demand", "on_demand")
