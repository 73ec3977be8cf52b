"""Where settings come from, which source wins, and that no option ends nowhere."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import BaseModel

from server.engine.params import LOOKUP, EngineParams
from server.engine.request import DEFAULT_SAMPLERS, RANDOM_SEED, SamplingParams
from server.errors import ConfigError
from server.options.model import WHERE
from server.options.option import OptionRow
from server.options.server import ServerSettings
from server.pool.spec import ChatParams, LoadParams, MetadataOverride, TensorOverride
from server.settings import DEFAULT_CONFIGS, TABLE, Settings, check_files, load_settings, model_specs
from tests.unit.settings.builders import MODEL, spec

ROOT = Path(__file__).parents[3]


def write(folder: Path, text: str, name: str = "pool.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def settings(*argv: str, env: dict[str, str] | None = None, config: Path | None = None) -> Settings:
    return load_settings(argv, env or {}, config)


def test_a_line_for_llama_server_needs_no_yaml() -> None:
    line = "-m model.gguf -c 4096 -np 4 --port 8081 --api-key k --metrics"
    found = settings(*line.split())
    assert (found.server.port, found.server.api_keys, found.server.metrics) == (8081, ("k",), True)
    [model] = model_specs(found)
    assert (model.id, model.load, model.path) == ("model.gguf", "startup", Path("model.gguf"))
    assert (model.native.n_ctx, model.native.n_parallel) == (4096, 4)


@pytest.mark.parametrize("name", ["m.gguf", ""])
def test_what_clients_may_read_of_a_model_holds_no_credentials(name: str) -> None:
    """GET /models tells them its id, the flags that would serve it, and its section of a preset."""
    given = f"https://alice:secret@h/{name}?token=secret"
    [model] = model_specs(settings("-mu", given))
    assert model.remote is not None
    assert model.remote.url == given
    assert f"https://****@h/{name}?token=****" in model.args
    assert "secret" not in " ".join([model.id, *model.args, model.preset])


def test_llama_servers_docker_environment_needs_no_yaml() -> None:
    env = {
        "LLAMA_ARG_MODEL": "/models/my_model.gguf",
        "LLAMA_ARG_CTX_SIZE": "4096",
        "LLAMA_ARG_N_PARALLEL": "2",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "LLAMA_ARG_PORT": "8080",
    }
    found = settings(env=env)
    [model] = model_specs(found)
    assert found.server.metrics
    assert (model.id, model.native.n_ctx, model.native.n_parallel) == ("/models/my_model.gguf", 4096, 2)


def test_without_any_model_the_default_configuration_is_served() -> None:
    model, embedder, ranker = model_specs(settings())
    assert (ranker.id, ranker.load, ranker.configured_for("rerank")) == ("demo-rerank", "on_demand", True)
    assert (embedder.id, embedder.aliases, embedder.load) == ("demo-embed", ("text-embedding-3-small",), "on_demand")
    assert (model.id, model.aliases, model.load) == ("demo", ("gpt-4o-mini",), "startup")
    assert model.path == ROOT / "models" / "demo.gguf"
    assert (model.native.n_ctx, model.native.n_parallel) == (16384, 4)


def test_the_first_alias_in_order_is_the_id_as_in_llama_server() -> None:
    model = spec("--alias", "zeta, alpha")
    assert (model.id, model.aliases) == ("alpha", ("zeta",))


def test_m_serves_one_model_in_place_of_the_yamls(tmp_path: Path) -> None:
    config = write(tmp_path, "defaults: {n_ctx: 512}\nmodels: {a: {path: a.gguf}, b: {path: b.gguf}}\n")
    [model] = model_specs(settings("-m", "c.gguf", config=config))
    assert (model.id, model.native.n_ctx) == ("c.gguf", 512)


def test_defaults_are_merged_under_every_model_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = write(
        tmp_path, "defaults: {n_ctx: 512, seed: 7}\nmodels:\n  a: {path: x/a.gguf}\n  b: {path: b, n_ctx: 9}\n"
    )
    first, second = model_specs(settings(config=config))
    assert (first.native.n_ctx, first.sampling.seed) == (512, 7)
    assert (second.native.n_ctx, second.sampling.seed) == (9, 7)
    assert first.path == tmp_path.resolve() / "x" / "a.gguf"
    assert first.source == f"{config}:3"


def test_a_field_that_is_a_mapping_is_replaced_whole(tmp_path: Path) -> None:
    text = (
        "defaults: {chat_template_kwargs: {a: 1}, logit_bias: {5: 1.0}}\n"
        "models: {m: {path: m, chat_template_kwargs: {b: 2}, logit_bias: {6: 1.0}}}\n"
    )
    [model] = model_specs(settings(config=write(tmp_path, text)))
    assert model.chat.template_kwargs == {"b": 2, "preserve_reasoning": True}
    assert model.sampling.logit_bias == ((6, 1.0),)


def test_an_option_drops_what_weaker_sources_say_of_those_it_excludes(tmp_path: Path) -> None:
    config = write(tmp_path, "models: {m: {path: m, mmap: false}}\n")
    mode = {"LLAMA_ARG_LOAD_MODE": "none"}
    [native] = [model.native for model in model_specs(settings("--mlock", env=mode, config=config))]
    assert (native.mmap, native.mlock) == (True, True)  # the variable drops mmap, the flag drops the variable
    [native] = [model.native for model in model_specs(settings(env={"LLAMA_ARG_MLOCK": "1"}, config=config))]
    assert (native.mmap, native.mlock) == (False, True)


def test_only_what_is_handed_in_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic-settings would read these names of the process's environment."""
    monkeypatch.setenv("SERVER", '{"port": 1}')
    monkeypatch.setenv("SERVER__PORT", "1")
    monkeypatch.setenv("LLAMAPOOL_SERVER__PORT", "1")
    assert settings(*MODEL).server.port == 8080
    assert Settings(server=ServerSettings(port=5)).server.port == 5
    assert Settings().server.port == 8080


def test_the_order_of_precedence(tmp_path: Path) -> None:
    words, env = ["-b", "1"], {"LLAMAPOOL_MODELS__M__N_BATCH": "2", "LLAMA_ARG_BATCH": "3"}
    env["LLAMAPOOL_DEFAULTS__N_BATCH"] = "5"
    models, defaults = "models: {m: {path: m, n_batch: 4}}\n", "defaults: {n_batch: 6}\n"

    def n_batch() -> int:
        return settings(*words, env=env, config=write(tmp_path, models + defaults)).models["m"].n_batch

    assert n_batch() == 1
    words.clear()
    assert n_batch() == 2
    del env["LLAMAPOOL_MODELS__M__N_BATCH"]
    assert n_batch() == 3
    del env["LLAMA_ARG_BATCH"]
    assert n_batch() == 4
    models = "models: {m: {path: m}}\n"
    assert n_batch() == 5
    del env["LLAMAPOOL_DEFAULTS__N_BATCH"]
    assert n_batch() == 6
    defaults = ""
    assert n_batch() == 2048


def test_the_models_stay_in_the_files_order(tmp_path: Path) -> None:
    config = write(tmp_path, "models: {z: {path: z}, a: {path: a, seed: 1}, m: {path: m}}\n")
    env = {"LLAMAPOOL_MODELS__M__SEED": "2", "LLAMA_ARG_BATCH": "3"}
    assert list(settings("-c", "1", env=env, config=config).models) == ["z", "a", "m"]


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


def test_a_model_of_the_environment_stands_in_place_of_the_default_configuration(installed: Path) -> None:
    [model] = model_specs(settings(env={"LLAMA_ARG_MODEL": "/models/other.gguf", "LLAMA_ARG_HOST": "0.0.0.0"}))
    assert (model.id, model.load) == ("/models/other.gguf", "startup")


def test_without_a_configuration_the_cache_is_served(installed: Path) -> None:
    installed.unlink()
    assert settings().models == {}
    with pytest.raises(ConfigError, match="no model is configured: give -m FILE"):
        settings("--no-models-cache")


def test_a_flag_of_a_models_option_holds_for_every_model(tmp_path: Path) -> None:
    config = write(tmp_path, "models:\n  a: {path: a, n_ctx: 1}\n  b: {path: b}\n")
    assert [model.native.n_ctx for model in model_specs(settings("-c", "64", config=config))] == [64, 64]


def test_one_field_of_one_model_is_set_from_the_environment(tmp_path: Path) -> None:
    config = write(tmp_path, "models:\n  qwen3-0.6b: {path: a}\n  other: {path: b}\n")
    env = {"LLAMAPOOL_MODELS__qwen3_0_6b__n_ctx": "77", "LLAMAPOOL_SERVER__PORT": "1234"}
    found = settings(env={name.upper(): value for name, value in env.items()}, config=config)
    assert [model.native.n_ctx for model in model_specs(found)] == [77, 0]
    assert found.server.port == 1234


def test_llamapools_own_variable_is_stronger_than_llama_servers() -> None:
    env = {"LLAMA_ARG_PORT": "1", "LLAMAPOOL_SERVER__PORT": "2"}
    assert settings(*MODEL, env=env).server.port == 2


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("enabled", True), ("off", False), ("false", False)])
def test_booleans_in_variables_are_llama_servers(text: str, expected: bool) -> None:
    assert settings(*MODEL, env={"LLAMA_ARG_ENDPOINT_METRICS": text}).server.metrics is expected


def test_a_negated_variable_counts_whatever_its_value() -> None:
    assert spec(env={"LLAMA_ARG_NO_KV_OFFLOAD": "", "LLAMA_ARG_KV_OFFLOAD": "1"}).native.kv_offload is False
    assert spec(env={"LLAMA_ARG_NO_MMAP": "1"}).native.mmap is False


def test_an_empty_variable_counts_as_unset() -> None:
    assert settings(*MODEL, env={"LLAMA_ARG_PORT": "", "LLAMAPOOL_SERVER__PORT": ""}).server.port == 8080


@pytest.mark.parametrize(
    ("argv", "mmap", "mlock"),
    [
        ([], True, False),
        (["--mlock"], True, True),
        (["--no-mmap"], False, False),
        (["-lm", "none"], False, False),
        (["-lm", "mlock"], False, True),
        (["-lm", "mmap+mlock"], True, True),
        (["--mlock", "-lm", "none"], False, False),
        (["-lm", "none", "--mlock", "--mmap"], True, True),
    ],
)
def test_how_the_file_is_read(argv: list[str], mmap: bool, mlock: bool) -> None:
    native = spec(*argv).native
    assert (native.mmap, native.mlock) == (mmap, mlock)


@pytest.mark.parametrize(("text", "layers"), [("auto", -1), ("all", -2), ("17", 17)])
def test_gpu_layers_take_words(text: str, layers: int) -> None:
    assert spec("-ngl", text).native.n_gpu_layers == layers


def test_special_values_of_llama_server() -> None:
    assert spec("-fa", "1").native.flash_attn == "on"
    assert spec("-np", "-1").native.n_parallel == -1
    assert spec("--seed", "-1").sampling.seed == RANDOM_SEED
    assert spec("--temp", "-3").sampling.temperature == 0.0
    assert spec("-no-kvu").native.kv_unified is False
    assert spec("-t", "0").native.n_threads == -1
    assert spec("-ts", "3/1").native.tensor_split == (3.0, 1.0)
    assert spec("--chat-template", "chatml").chat.template == "chatml"


def test_each_model_may_have_a_built_in_template(tmp_path: Path) -> None:
    text = "defaults: {chat_template: vicuna}\nmodels: {a: {path: a, chat_template: llama3}, b: {path: b}}\n"
    found = model_specs(settings(config=write(tmp_path, text)))
    assert [model.chat.template for model in found] == ["llama3", "vicuna"]


def test_samplers_are_read_by_name_or_by_letter() -> None:
    assert spec().sampling.samplers == DEFAULT_SAMPLERS
    found = spec("--samplers", "top-k;temp;Nucleus;typical_p").sampling.samplers
    assert found == ("top_k", "temperature", "top_p", "typ_p")
    assert spec("--sampler-seq", "kt").sampling.samplers == ("top_k", "temperature")
    assert spec("--sampler-seq", "kt", "--samplers", "min_p").sampling.samplers == ("min_p",)


def test_repeated_flags_add_up() -> None:
    sampling = spec("-l", "5+1.5", "-l", "6-2,7-inf", "--dry-sequence-breaker", "\\n", "--dry-sequence-breaker", "x")
    assert sampling.sampling.logit_bias == ((5, 1.5), (6, -2.0), (7, float("-inf")))
    assert sampling.sampling.dry_sequence_breakers == ("\n", "x")
    assert spec("--dry-sequence-breaker", "none").sampling.dry_sequence_breakers == ()
    keys = settings(*MODEL, "--api-key", 'a,"b,c"', "--api-key", "d").server.api_keys
    assert keys == ("a", "b,c", "d")


def test_keys_of_the_file_are_added(tmp_path: Path) -> None:
    file = write(tmp_path, "# comment\nk1\n\nk2\n", "keys")
    assert settings(*MODEL, "--api-key", "k0", "--api-key-file", str(file)).server.all_api_keys() == ("k0", "k1", "k2")


def test_a_template_file_is_read_relative_to_the_yaml(tmp_path: Path) -> None:
    write(tmp_path, "{{ messages }}", "t.jinja")
    config = write(tmp_path, "models: {a: {path: a, chat_template_file: t.jinja}}\n")
    assert model_specs(settings(config=config))[0].chat.template == "{{ messages }}"


def test_template_variables() -> None:
    chat = spec("--chat-template-kwargs", '{"a": 1}', "--reasoning-effort", "low", "--no-reasoning-preserve").chat
    assert chat.template_kwargs == {"a": 1, "reasoning_effort": "low", "preserve_reasoning": False}


# What each option is set to, to see that it ends somewhere; the others get the next value of their type.
SAMPLES = {
    "rpc": "host:50052",
    "host": "0.0.0.0",
    "max_bodies_bytes": "268435456",
    "api_prefix": "/llm",
    "predict_route": "/p",
    "health_route": "/h",
    "load": "on_demand",
    "log_colors": "on",
    "numa": "isolate",
    "spec_type": "ngram-simple",
    "draft_cache_type_k": "q8_0",
    "draft_cache_type_v": "q8_0",
    "rope_scaling": "yarn",
    "tensor_split": "3,1",
    "chat_template": "{{ messages }}",
    "tool_format": "harmony",
    "chat_template_kwargs": '{"a": 1}',
    "reasoning_effort": "low",
    "samplers": "top_k",
    "sampler_seq": "k",
    "logit_bias": "5+1",
    "dry_sequence_breakers": "x",
    "slot_prompt_similarity": "0.5",
    "adaptive_decay": "0.5",
    "mirostat": "1",
    "aliases": "a,b",
    "tags": "a,b",
    "api_keys": "a,b",
    "path": "other.gguf",
    "mmproj": "eyes.gguf",
    "mmproj_url": "http://h/eyes.gguf",
    "mmproj_device": "none",
    "hf_file": "b.gguf",
    "draft_hf": "owner/name:Q8_0",
    "model_url": "http://127.0.0.1/m.gguf",
    "docker_repo": "127.0.0.1:5000/m",
    "sleep_idle_seconds": "60",
    "n_parallel": "3",
    "n_threads": "3",
    "n_threads_batch": "3",
    "lora": "a.gguf:0.5",
    "control_vectors": "a.gguf:0.5",
    "cpu_range": "0-1",
    "cpu_range_batch": "0-1",
    "draft_cpu_range": "0-1",
    "draft_cpu_range_batch": "0-1",
    "tools": "get_info",
    "override_tensor": "exps=CPU",
    "draft_override_tensor": "exps=CPU",
    "override_kv": "key=int:1",
    "cpu_mask": "f",
    "cpu_mask_batch": "f",
    "draft_cpu_mask": "f",
    "draft_cpu_mask_batch": "f",
    "fit_target": "512",
    "memory": "80%",
}


def sample(entry: OptionRow) -> str:
    if entry.key in SAMPLES:
        return SAMPLES[entry.key]
    owner: Any = Settings.model_fields["server" if entry.section == "server" else "defaults"].annotation
    choices = [choice for choice in get_args(owner.model_fields[entry.key].annotation) if isinstance(choice, str)]
    if choices:
        return next(choice for choice in reversed(choices) if choice != entry.default)
    if isinstance(entry.default, (int, float)):
        return str(entry.default + 1)
    return "some.file"


ECHOES = ("args", "preset")
"""Of a model's spec: the command line, written out again. Every option is in them, whether it has an effect or not."""
EFFECTS: dict[str, dict[str, Any]] = {
    "server.ssl_key_file": {"server.ssl_key_file": Path("k"), "server.ssl_cert_file": Path("c")},
    "server.ssl_cert_file": {"server.ssl_key_file": Path("k"), "server.ssl_cert_file": Path("c")},
    "path": {"path": Path("other.gguf")},
    "n_ctx": {"native.fit_ctx": 2**31 - 1},
    "kv_unified_per_slot": {"native.n_ctx": 4, "native.n_ctx_slot": 1},
    "device": {"native.devices": (("some.file",),)},
    "sleep_idle_seconds": {"sleep_idle_s": 60.0},
    "cpu_range": {"engine.cpus": (frozenset({0, 1}),)},
    "cpu_mask": {"engine.cpus": (frozenset({0, 1, 2, 3}),)},
    "cpu_strict": {"native.placement.strict": True, "native.placement.strict_batch": False},
    "cpu_range_batch": {"native.placement.cpus_batch": frozenset({0, 1}), "native.placement.cpus": frozenset()},
    "cpu_mask_batch": {"native.placement.cpus_batch": frozenset({0, 1, 2, 3}), "native.placement.cpus": frozenset()},
    "cpu_strict_batch": {"native.placement.strict_batch": True, "native.placement.strict": False},
    "load_mode": {"native.mlock": True},
    "override_tensor": {"native.tensor_overrides": (TensorOverride("exps", "CPU"),)},
    "override_kv": {"native.metadata_overrides": (MetadataOverride("key", 1),)},
    "cache_disk": {"engine.cache_disk": 100, "engine.cache_disk_path": Path("folder")},
    "draft_model": {"draft.path": Path("some.file")},
    "draft_hf": {"remote.draft": "owner/name:Q8_0"},
    "spec_synth_rates": {"engine.spec_draft_max": 2, "engine.spec_synth": (0.9, 0.5)},
    "spec_synth_len": {"engine.spec_draft_max": 2, "engine.spec_synth": pytest.approx((0.366, 0.134), abs=1e-3)},
    "draft_n_threads": {"draft.native.n_threads": 0, "draft.native.n_threads_batch": 0},
    "draft_n_threads_batch": {"draft.native.n_threads_batch": 0},
    "draft_cpu_range": {"draft.native.placement.cpus": frozenset({0, 1})},
    "draft_cpu_mask": {"draft.native.placement.cpus": frozenset({0, 1, 2, 3})},
    "draft_cpu_strict": {"draft.native.placement.strict": True},
    "draft_cpu_range_batch": {"draft.native.placement.cpus_batch": frozenset({0, 1})},
    "draft_cpu_mask_batch": {"draft.native.placement.cpus_batch": frozenset({0, 1, 2, 3})},
    "draft_cpu_strict_batch": {"draft.native.placement.strict_batch": True},
    "draft_device": {"draft.native.devices": (("some.file",),)},
    "draft_n_gpu_layers": {"draft.native.n_gpu_layers": 0},
    "draft_override_tensor": {"draft.native.tensor_overrides": (TensorOverride("exps", "CPU"),)},
    "draft_cpu_moe": {"draft.native.cpu_moe": True},
    "draft_n_cpu_moe": {"draft.native.n_cpu_moe": 1},
    "draft_cache_type_k": {"draft.native.cache_type_k": "q8_0"},
    "draft_cache_type_v": {"draft.native.cache_type_v": "q8_0"},
    "chat_template": {"chat.template": "{{ messages }}"},
    "chat_template_file": {"chat.template": "{{ messages }}"},
    "chat_template_kwargs": {"chat.template_kwargs": {"preserve_reasoning": True, "a": 1}},
    "reasoning_effort": {"chat.template_kwargs": {"preserve_reasoning": True, "reasoning_effort": "low"}},
    "reasoning_preserve": {"chat.template_kwargs": {"preserve_reasoning": False}},
    "reverse_prompt": {"stop": ("some.file",)},
    "grammar": {"shape.kind": "gbnf", "shape.value": "some.file"},
    "grammar_file": {"shape.kind": "gbnf", "shape.value": "{{ messages }}"},
    "json_schema": {"shape.kind": "schema", "shape.value": {"type": "object"}},
    "json_schema_file": {"shape.kind": "schema", "shape.value": {"type": "object"}},
    "sampler_seq": {"sampling.samplers": ("top_k",)},
    "backend_sampling": {"engine.backend_sampling": True, "sampling.backend_sampling": True},
    "mmproj_auto": {"remote.mmproj": False},
    "mmproj_url": {"remote.mmproj_url": "http://h/eyes.gguf"},
    "reranking": {"native.pooling": "rank", "native.embedding": True},
    "hf": {"remote.hf": "owner/name", "remote.file": "a.gguf"},
    "hf_file": {"remote.file": "b.gguf"},
    "model_url": {"remote.url": "http://127.0.0.1/m.gguf"},
    "docker_repo": {"remote.docker": "127.0.0.1:5000/m"},
    "aliases": {"id": "a", "aliases": ("b",)},
}
"""What an option does that does not set one value of its own name and nothing else."""


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Every single value of settings and specs, by its path."""
    if isinstance(value, BaseModel):
        inner = {name: getattr(value, name) for name in type(value).model_fields}
    elif is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        return {at: value}
    dot = f"{at}." if at else ""
    return {name: leaf for key, each in inner.items() for name, leaf in leaves(each, dot + key).items()}


def observed(argv: list[str]) -> dict[str, Any]:
    """What options come to: the server's settings, and the last model's spec if there is any."""
    found = settings(*argv)
    models = model_specs(found)
    return leaves(found.server, "server") | (leaves(models[-1]) if models else {})


@pytest.mark.parametrize("entry", list(TABLE), ids=lambda entry: entry.key)
def test_every_option_reaches_the_server_settings_or_a_model_spec(entry: OptionRow, tmp_path: Path) -> None:
    template = write(tmp_path, "{{ messages }}", "t.jinja")
    special = {
        "ui_config": ["--ui-config", '{"theme": "dark"}'],
        "mcp_servers": ["--mcp-servers-json", '{"x": {"command": "y"}}'],
        "chat_template_file": ["--chat-template-file", str(template)],
        "grammar_file": ["--grammar-file", str(template)],
        "json_schema": ["-j", '{"type": "object"}'],
        "json_schema_file": ["-jf", str(write(tmp_path, '{"type": "object"}', "s.json"))],
        "ssl_key_file": ["--ssl-key-file", "k", "--ssl-cert-file", "c"],
        "ssl_cert_file": ["--ssl-key-file", "k", "--ssl-cert-file", "c"],
        "cache_disk": ["--cache-disk", "100", "--cache-disk-path", "folder"],
        "hf": ["-hf", "owner/name", "-hff", "a.gguf"],  # so that nobody asks whether it is a preset
        "models_dir": ["--models-dir", str(tmp_path)],
        "models_preset": ["--models-preset", str(write(tmp_path, "", "p.ini"))],
        "control_vector_layer_range": ["--control-vector-layer-range", "1", "5"],
        "spec_synth_rates": ["--spec-draft-n-max", "2", "--spec-synth-rates", "0.9,0.5"],
        "spec_synth_len": ["--spec-draft-n-max", "2", "--spec-synth-len", "1.5"],
    }
    if entry.key in special:
        argv = special[entry.key]
    elif entry.is_switch and entry.default is True:
        argv = [next(flag for flag, value in entry.constants.items() if value is False)]
    elif entry.is_switch:
        argv = [entry.flags[0]]
        argv = ["--no-mmap"] if entry.key == "mmap" else argv
    else:
        argv = [entry.flags[-1], sample(entry)]
    model = [*MODEL, "-md", "d.gguf"] if entry.key.startswith(("draft_", "spec_synth_")) else MODEL
    if entry.key in ("hf_file", "mmproj_auto"):
        model = ["-hf", "owner/name", "-hff", "a.gguf"]
    elif (entry.key in WHERE and entry.section != "server") or entry.key == "models_cache":
        model = []
    before, after = observed(model), observed([*model, *argv])
    changed = {name: leaf for name, leaf in after.items() if leaf != before.get(name, ...) and name not in ECHOES}
    effects = EFFECTS.get(f"server.{entry.key}" if entry.section == "server" else entry.key)
    if effects is not None:
        assert {name: changed[name] for name in effects} == effects
        return
    assert [name.rpartition(".")[2] for name in changed] == [entry.key]
    (value,) = changed.values()
    if not entry.is_switch and isinstance(value, int | float) and not isinstance(value, bool):
        assert float(value) == float(argv[-1])
    elif isinstance(value, str | Path) and entry.key in argv[0].replace("-", "_"):
        assert str(value) == argv[-1]


def test_every_field_of_the_inside_can_be_configured() -> None:
    derived = {
        ChatParams: {"template", "template_kwargs"},
        EngineParams: {"cpus", "spec_synth", "cache_disk_secret"},
        LoadParams: {"devices", "placement", "tensor_overrides", "metadata_overrides", "n_ctx_slot", "mtp"},
    }
    names = {key for section, key in TABLE.entries if section == "model"}
    for inside in (LoadParams, EngineParams, SamplingParams, ChatParams):
        assert {field.name for field in fields(inside)} - names <= derived.get(inside, set()), inside


def test_the_tables_defaults_are_the_insides() -> None:
    plain = spec()
    assert plain.native == LoadParams()
    assert plain.engine == EngineParams(spec_type=LOOKUP)
    assert plain.sampling == SamplingParams()
    assert plain.chat == ChatParams(template_kwargs={"preserve_reasoning": True})


def test_no_two_options_share_a_spelling() -> None:
    flags = [flag for entry in TABLE for flag in (*entry.flags, *entry.constants)]
    variables = [entry.option.env for entry in TABLE if entry.option.env]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))
    assert all(entry.description for entry in TABLE)


ports = st.none() | st.integers(0, 65535)


@examples(deadline=None, max_examples=60)
@given(flag=ports, own=ports, llama=ports, yaml=ports)
def test_flags_beat_the_environment_beats_the_yaml_beats_defaults(
    flag: int | None, own: int | None, llama: int | None, yaml: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = "" if yaml is None else f"server: {{port: {yaml}}}\n"
    config = write(tmp_path_factory.mktemp("p"), server + "models: {a: {path: a}}\n")
    env = {} if own is None else {"LLAMAPOOL_SERVER__PORT": str(own)}
    env |= {} if llama is None else {"LLAMA_ARG_PORT": str(llama)}
    argv = [] if flag is None else ["--port", str(flag)]
    expected = next(port for port in (flag, own, llama, yaml, 8080) if port is not None)
    assert settings(*argv, env=env, config=config).server.port == expected


sizes = st.none() | st.integers(0, 1 << 20)


@examples(deadline=None, max_examples=60)
@given(flag=sizes, own=sizes, llama=sizes, model=sizes, own_defaults=sizes, defaults=sizes)
def test_the_same_for_a_models_option(
    flag: int | None,
    own: int | None,
    llama: int | None,
    model: int | None,
    own_defaults: int | None,
    defaults: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lines = ["" if defaults is None else f"defaults: {{n_ctx: {defaults}}}", "models:", "  a-b:", "    path: x"]
    lines += [] if model is None else [f"    n_ctx: {model}"]
    config = write(tmp_path_factory.mktemp("p"), "\n".join(lines))
    given = {
        "LLAMAPOOL_MODELS__A_B__N_CTX": own,
        "LLAMA_ARG_CTX_SIZE": llama,
        "LLAMAPOOL_DEFAULTS__N_CTX": own_defaults,
    }
    env = {name: str(value) for name, value in given.items() if value is not None}
    argv = [] if flag is None else ["-c", str(flag)]
    order = (flag, own, llama, model, own_defaults, defaults, 0)
    expected = next(size for size in order if size is not None)
    assert model_specs(settings(*argv, env=env, config=config))[0].native.n_ctx == expected


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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-m", "a", "-dr", "127.0.0.1:5000/m"], ""),
        (["-hf", "a/b", "-mu", "http://x/y.gguf"], ""),
        (["-m", "a", "-hff", "x.gguf"], "hf_file needs hf"),
        (["-hf", "http://x/a/b"], "owner/name"),
        (["-mu", "file:///etc/passwd"], "http://"),
        (["-dr", "Gemma3"], "REGISTRY"),
    ],
)
def test_a_model_has_one_source(argv: list[str], said: str) -> None:
    if not said:  # the later one counts
        assert len(settings(*argv).models) == 1
        return
    with pytest.raises(ConfigError, match=said):
        settings(*argv)


def test_files_are_checked_apart_from_reading(tmp_path: Path) -> None:
    good = tmp_path / "good.gguf"
    good.write_bytes(b"GGUF....")
    assert check_files(settings("-m", str(good))) == []
    with pytest.raises(ConfigError, match=r"^-m: no such file: model\.gguf; check the path$"):
        check_files(settings(*MODEL))
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"PK..")
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        check_files(settings("-m", str(bad)))


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
