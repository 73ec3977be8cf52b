"""Where settings come from, which source wins, and that no option ends nowhere."""

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
def test_what_clients_may_read_of_a_model_holds_no_credentials(name: str) -> None:
    """GET /models tells them its id, the flags that would serve it, and its section of a preset."""
    given = f"https://alice:secret@h/{name}?token=secret"
    [model] = model_specs(settings("-mu", given))
    assert model.remote is not None
    assert model.remote.url == given
    assert f"https://****@h/{name}?token=****" in model.args
    assert "secret" not in " ".join([model.id, *model.args, model.preset])


def test_without_any_model_the_default_configuration_is_served() -> None:
    model, embedder, ranker = model_specs(settings())
    assert (ranker.id, ranker.load, ranker.configured_for("rerank")) == ("demo-rerank", "on_demand", True)
    assert (embedder.id, embedder.aliases, embedder.load) == ("demo-embed", ("text-embedding-3-small",), "on_demand")
    assert (model.id, model.aliases, model.load) == ("demo", ("gpt-4o-mini",), "startup")
    assert model.path == ROOT / "models" / "demo.gguf"
    assert (model.native.n_ctx, model.native.n_parallel) == (16384, 4)


def test_only_what_is_handed_in_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic-settings would read these names of the process's environment."""
    monkeypatch.setenv("SERVER", '{"port": 1}')
    monkeypatch.setenv("SERVER__PORT", "1")
    monkeypatch.setenv("LLAMAPOOL_SERVER__PORT", "1")
    assert settings(*MODEL).server.port == 8080
    assert Settings(server=ServerSettings(port=5)).server.port == 5
    assert Settings().server.port == 8080


def test_each_source_is_stronger_than_those_added_before_it(tmp_path: Path) -> None:
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
    """An installed package's view: no configuration beside it, one in the working directory, as in the image."""
    monkeypatch.setattr("server.settings.DEFAULT_CONFIGS", (tmp_path / "none.yaml", DEFAULT_CONFIGS[1]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    return write(tmp_path / "config", "models: {here: {path: ../models/here.gguf}}\n", "default.yaml")


def test_an_installed_package_takes_the_working_directorys_default_configuration(installed: Path) -> None:
    [model] = model_specs(settings())
    assert (model.id, model.path) == ("here", installed.parents[1].resolve() / "models" / "here.gguf")


def test_a_folder_of_pages_is_no_place_of_models(installed: Path) -> None:
    """server.path and a model's path are two options of the same name."""
    assert [model.id for model in model_specs(settings("--path", str(installed.parent)))] == ["here"]


def test_a_model_of_the_environment_stands_in_place_of_the_default_configuration(installed: Path) -> None:
    [model] = model_specs(settings(env={"LLAMA_ARG_MODEL": "/models/other.gguf", "LLAMA_ARG_HOST": "0.0.0.0"}))
    assert (model.id, model.load) == ("/models/other.gguf", "startup")


def test_without_a_configuration_the_cache_is_served(installed: Path) -> None:
    installed.unlink()
    assert settings().models == {}
    with pytest.raises(ConfigError, match="no model is configured: give -m FILE"):
        settings("--no-models-cache")


def test_keys_of_the_file_are_added(tmp_path: Path) -> None:
    file = write(tmp_path, "# comment\nk1\n\nk2\n", "keys")
    assert settings(*MODEL, "--api-key", "k0", "--api-key-file", str(file)).server.all_api_keys() == ("k0", "k1", "k2")


def test_every_field_of_the_inside_can_be_configured() -> None:
    derived = {
        ChatParams: {"template", "template_kwargs"},
        EngineParams: {"cpus", "spec_ngram", "spec_synth", "cache_disk_secret"},
        LoadParams: {
            *("devices", "placement", "tensor_overrides", "metadata_overrides", "n_ctx_slot", "mtp", "fit_ubatch")
        },
    }
    names = {key for section, key in TABLE.entries if section == "model"}
    for inside in (LoadParams, EngineParams, SamplingParams, ChatParams):
        assert {field.name for field in fields(inside)} - names <= derived.get(inside, set()), inside


def test_the_tables_defaults_are_the_insides() -> None:
    (plain,) = model_specs(settings(*MODEL))
    assert plain.native == LoadParams()
    assert plain.engine == EngineParams(spec_type=LOOKUP)
    assert plain.sampling == SamplingParams()
    assert plain.chat == ChatParams(template_kwargs={"preserve_reasoning": True})


def test_no_two_options_share_a_spelling() -> None:
    flags = [flag for entry in TABLE for flag in (*entry.flags, *entry.constants)]
    variables = [entry.env for entry in TABLE if entry.env]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))
    assert all(entry.description for entry in TABLE)


numeric = [entry for entry in TABLE if type(entry.default) in (int, float) and entry.section == "model"]


@examples(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_number_means_the_same_as_flag_variable_and_yaml(
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


def test_a_checkouts_demo_waits_until_it_is_asked_for_beside_a_cache(tmp_path: Path) -> None:
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
