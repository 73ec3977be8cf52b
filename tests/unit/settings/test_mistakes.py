"""Every mistake in the settings ends in one line that names where, what and what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from server.errors import ConfigError
from server.options.flags import FIXED, REFUSED, SHORTHANDS, WITHOUT_EFFECT
from server.options.option import descriptions
from server.options.reference import help_text
from server.settings import TABLE, check_files, load_settings, model_specs
from tests.support.ggufs import TinyModel, gguf_file

MODEL = ["-m", "model.gguf"]


def mistake(*argv: str, env: dict[str, str] | None = None, config: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(argv, env or {}, config)
    assert "\n" not in caught.value.message
    return caught.value.message


def outcome(argv: list[str], config: Path | None = None) -> str:
    """The mistake, or nothing; anything but a ConfigError fails the test."""
    try:
        load_settings(argv, {}, config)
    except ConfigError as error:
        return error.message
    return ""


@pytest.fixture
def yaml_mistake(tmp_path: Path) -> Callable[[str], str]:
    def check(text: str) -> str:
        config = tmp_path / "pool.yaml"
        config.write_text(text, encoding="utf-8")
        return mistake(config=config).replace(f"{config}", "FILE")

    return check


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--prot", "1"], "unknown argument '--prot'; did you mean '--port'?"),
        (["--lora", "\n0"], "a list should be on one line, not '\\n0'"),
        (["--ctx_siz", "1"], "unknown argument '--ctx-siz'; did you mean '--ctx-size'?"),
        (["qqqqqqq"], "unknown argument 'qqqqqqq'; see --help"),
        (["a/b.gguf"], "unknown argument 'a/b.gguf'; to serve this model, write -m a/b.gguf"),
        (["pool.yaml"], "unknown argument 'pool.yaml'; to use this configuration, write --config pool.yaml"),
        (["-np"], "-np needs a value; see --help"),
        (["--metrics=1"], "--metrics takes no value; write --metrics alone"),
        (
            ["--port", "abc"],
            "--port: invalid value 'abc': should be a valid integer, unable to parse string as an integer",
        ),
        (["--port=70000"], "--port: invalid value '70000': should be less than or equal to 65535"),
        (["-c", "-2"], "-c: invalid value '-2': should be greater than or equal to -1"),
        (["-np", "0"], "-np: invalid value '0': should be -1 or at least 1"),
        (["--tool-format", ""], "--tool-format: invalid value '': should be auto or one of"),
        (["-fa", "maybe"], "-fa: invalid value 'maybe': should be 'on', 'off' or 'auto'"),
        (["-ctk", "q3"], "-ctk: invalid value 'q3': should be 'f32', 'f16'"),
        (["--temp", "nan"], "--temp: invalid value 'nan': should be a finite number"),
        (["--samplers", "top_k;bogus"], "unknown sampler 'bogus'; known: penalties, dry"),
        (["--sampler-seq", "kz"], "unknown letter 'z'; known: e = penalties"),
        (["-l", "5*3"], "-l: invalid value '5*3': should be TOKEN_ID+BIAS or TOKEN_ID-BIAS, as in 15043+1"),
        (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs: invalid value '[1]': should be a JSON object"),
        (["--chat-template-kwargs", "[" * 100_000], "[...: should be a JSON object: "),
        (["--chat-template-kwargs", '{"tools": []}'], "can't set tools: it is set by the request's own fields"),
        (["--chat-template-kwargs", '{"bos_token": ""}'], "can't set bos_token: it is the model's own"),
        (["--api-prefix", "llm/"], "--api-prefix: invalid value 'llm/': should start with / and not end with it"),
        (["--ssl-key-file", "k"], "ssl_key_file and ssl_cert_file belong together; give both"),
        (["--host", ","], "--host: invalid value []: should have at least 1 entry"),
        (["--sleep-idle-seconds", "0"], "--sleep-idle-seconds: invalid value '0': should be -1 or at least 1"),
        (
            ["--tools-runtime"],
            "--tools-runtime is not supported: Llamapool runs tools on this machine, not in a container; remove it",
        ),
        (["--mcp-servers-json", "{"], "--mcp-servers-json: invalid value: should be a JSON object"),
        (["--tools", "sudo"], "unknown tool 'sudo'; known: read_file, file_glob_search"),
        (["--ui-config", "[1]"], "--ui-config: invalid value '[1]': should be a JSON object"),
        (["--ui-config-file", "/nowhere"], "/nowhere: cannot be read: No such file or directory; check the path"),
        (["--rpc", "host"], "--rpc: invalid value 'host': 'host' should be HOST:PORT"),
        (["-nocb"], "-nocb is not supported: Llamapool always batches continuously; remove it"),
    ],
)
def test_flags(argv: list[str], expected: str) -> None:
    assert expected in mistake(*MODEL, *argv)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("LLAMA_ARG_PROT=1", "unknown variable LLAMA_ARG_PROT; did you mean 'LLAMA_ARG_PORT'?"),
        ("LLAMA_ARG_OFFLINE=maybe", "LLAMA_ARG_OFFLINE: invalid value 'maybe': should be true or false"),
        ("LLAMA_ARG_PORT=x", "LLAMA_ARG_PORT: invalid value 'x': should be a valid integer"),
        (
            "LLAMA_ARG_ENDPOINT_METRICS=maybe",
            "LLAMA_ARG_ENDPOINT_METRICS: invalid value 'maybe': should be true or false",
        ),
        ("LLAMA_ARG_CONT_BATCHING=false", "LLAMA_ARG_CONT_BATCHING is not supported"),
        ("LLAMA_ARG_NO_CONT_BATCHING=1", "LLAMA_ARG_NO_CONT_BATCHING is not supported"),
        ("LLAMA_ARG_NO_PORT=1", "unknown variable LLAMA_ARG_NO_PORT"),
        ("LLAMAPOOL_ANY=1", "unknown variable LLAMAPOOL_ANY; write LLAMAPOOL_CONFIG"),
        ("LLAMAPOOL_SERVER__PROT=1", "LLAMAPOOL_SERVER__PROT: unknown field 'prot'; did you mean 'port'?"),
        ("LLAMAPOOL_MODELS__DEMO=1", "write LLAMAPOOL_MODELS__<ID>__<FIELD>"),
        ("LLAMAPOOL_DEFAULTS__A__N_CTX=1", "write LLAMAPOOL_DEFAULTS__<FIELD>"),
        ("LLAMAPOOL_MODELS__B__N_CTX=1", "no model has this id; known: model.gguf (MODEL_GGUF)"),
        ("LLAMAPOOL_DEFAULTS__PATH=x", "defaults.path"),
    ],
)
def test_variables(assignment: str, expected: str) -> None:
    name, value = assignment.split("=")
    assert expected in mistake(*MODEL, env={name: value})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "FILE:1: invalid YAML: while parsing a flow node"),
        ("- 1", "FILE: the file should be a mapping"),
        ("sever: {}", "FILE:1: unknown key 'sever'; did you mean 'server'?"),
        ("server:\n  prot: 1", "FILE:2: unknown key 'server.prot'; did you mean 'port'?"),
        ("server:\n  n_ctx: 1", "unknown key 'server.n_ctx'; 'n_ctx' belongs to models.<id> or defaults"),
        ("server:\n  zzz: 1", "FILE:2: unknown key 'server.zzz'; see docs/configuration.md"),
        ("models:\n  a: {path: x, keys_file: y}", "unknown key 'models.a.keys_file'; 'keys_file' belongs to server"),
        ("server:\n\tport: 1", "FILE:2: invalid YAML: while scanning for the next token found character '\\t'"),
        ("server:\n\tport: 1", "(column 1); indent with spaces, not tabs"),
        (
            "server:\n  port: 1\n models: {}",
            "(column 2); check the indentation of this line and of the lines around it",
        ),
        ("server: 5", "FILE:1: server should be a mapping"),
        ("models:\n  a:\n    ctx-size: 1", "FILE:3: unknown key 'models.a.ctx-size'; did you mean 'n_ctx'?"),
        ("models:\n  a:\n    metrics: 1", "unknown key 'models.a.metrics'; 'metrics' belongs to server"),
        ("models:\n  a:\n    n_ctx: 1", "FILE:2: models.a: path is missing"),
        ("models:\n  a:", "FILE:2: models.a: path is missing"),
        ("models:\n  a: {path: x}\n  a: {path: y}", "FILE:3: 'a' appears twice in models; remove one"),
        ("models:\n  1: {path: x}", 'FILE:2: the key 1 in models is not text; write "1" in quotes'),
        (
            "models:\n  a:\n    path: x\n    n_ctx: true",
            "FILE:4: models.a.n_ctx: invalid value True: should be a number",
        ),
        (
            "models:\n  a:\n    path: x\n    n_ctx: [1]",
            "FILE:4: models.a.n_ctx: invalid value 1: should be a valid integer",
        ),
        ("models:\n  a:\n    path: 5", "FILE:3: models.a.path"),
        ("models:\n  a:\n    path: ~no-such-user/x", "FILE:3: models.a.path: no user has the home folder after ~"),
        ('models: {a: {path: "~\\0/x"}}', "FILE:1: models.a.path: no user has the home folder after ~"),
        (
            "server:\n  api_keys: [1]\nmodels: {a: {path: x}}",
            "FILE:2: server.api_keys: invalid value: should be a valid string",
        ),
        ("defaults:\n  path: x", "FILE:2: defaults.path belongs to one model; move it to models.<id>"),
        ("defaults:\n  seed: -2", "FILE:2: defaults.seed: invalid value -2: should be greater than or equal to -1"),
        ("server: {port: 1}", "no model is configured: give -m FILE"),
        ("models:\n  a: {path: x}\n  b: {path: y, aliases: [a]}", "'a' already names model 'a'; remove it"),
        ("models:\n  a: {path: x, aliases: c}\n  b: {path: y, aliases: c}", "'c' already names model 'a'"),
        (
            "server: {models_max: 1}\ndefaults: {load: startup}\nmodels: {a: {path: x}, b: {path: y}}",
            "server.models_max is 1, but 2 models are loaded at start-up (a, b); raise it or set load: on_demand",
        ),
        (
            "models:\n  a:\n    path: x\n    chat_template: '{{ x }}'\n    chat_template_file: t",
            "FILE:4, FILE:5: models.a: chat_template and chat_template_file exclude each other",
        ),
    ],
)
def test_yaml(yaml_mistake: Callable[[str], str], text: str, expected: str) -> None:
    assert expected in yaml_mistake(text)


def test_a_configuration_file_that_is_missing_or_not_text(tmp_path: Path) -> None:
    assert "no such file; check --config and LLAMAPOOL_CONFIG" in mistake("--config", str(tmp_path / "no.yaml"))
    assert "cannot be read" in mistake(env={"LLAMAPOOL_CONFIG": str(tmp_path)})
    (tmp_path / "latin.yaml").write_bytes(b"models: \xff")
    assert "is not UTF-8 text" in mistake(config=tmp_path / "latin.yaml")


def test_an_alias_flag_without_its_model(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text("models: {a: {path: x}}")
    assert mistake("-a", "b", config=config) == "-a names the model of -m or -hf; in the YAML set models.<id>.aliases"


def test_keys_are_never_shown(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text("server: {api_keys: {secret: 1}}\nmodels: {a: {path: x}}")
    message = mistake(config=config)
    assert "secret" not in message
    assert "server.api_keys: invalid value: should be" in message


def test_files_that_the_settings_name(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text("models:\n  a: {path: no.gguf, chat_template_file: no.jinja}")
    with pytest.raises(ConfigError, match=r"pool.yaml:2: models.a.chat_template_file: .*no.jinja: No such file"):
        model_specs(load_settings([], {}, config))
    with pytest.raises(ConfigError, match=r"server.api_key_file: nokeys: No such file or directory; check the path"):
        check_files(load_settings([*MODEL, "--api-key-file", "nokeys"], {}))
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"of the 3 parts of the model 2 are missing: m-00002-of-00003.gguf"):
        check_files(load_settings(["-m", str(tmp_path / "m-00001-of-00003.gguf")], {}))


def reference_options() -> tuple[set[str], set[str]]:
    """Return all flags and all variables that the settings know, supported or not."""
    fixed = {name for item in FIXED for name in (*item.on, *item.off, item.env) if name}
    others = {*REFUSED, *WITHOUT_EFFECT, *fixed, *SHORTHANDS}
    flags = {name for name in others if name.startswith("-")}
    return set(TABLE.by_flag) | flags, set(TABLE.by_env) | (others - flags)


def test_an_option_is_supported_or_fixed_or_refused_and_only_one_of_them() -> None:
    fixed = {name for item in FIXED for name in (*item.on, *item.off, item.env) if name}
    supported = {*TABLE.by_flag, *TABLE.by_env}
    kinds = [supported, fixed, set(REFUSED), set(WITHOUT_EFFECT)]
    assert len(set().union(*kinds)) == sum(map(len, kinds))


@examples(deadline=None, max_examples=60)
@given(words=st.lists(st.text(min_size=1) | st.sampled_from(sorted(TABLE.by_flag) + sorted(REFUSED)), max_size=6))
def test_no_command_line_does_worse_than_a_config_error(words: list[str]) -> None:
    harmless = [word for word in words if word not in ("--models-dir", "--models-preset", "--config")]
    assert len(outcome([*MODEL, *harmless]).splitlines()) <= 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--escape"], "--escape has no effect: Llamapool reads no prompts from flags or files"),
        (["-e"], "-e has no effect: Llamapool reads no prompts from flags or files"),
        (["--no-escape"], "--no-escape has no effect: Llamapool reads no prompts from flags or files"),
        (["--cache-idle-slots"], ""),
        (["--poll", "50"], "--poll has no effect: the library's threads are OpenMP's"),
        (
            ["--prio-batch", "1"],
            "--prio-batch has no effect: all threads of an instance, including its draft model's, have one priority",
        ),
        (["--draft-p-split", "0.1"], "--draft-p-split has no effect: llama-server ignores it too"),
        (["-dt", "0.1"], "-dt has no effect: llama-server ignores it too"),
        (["--no-cache-idle-slots"], "--no-cache-idle-slots has no effect: Llamapool keeps the KV cache of idle slots"),
        (["--chat-template", "lama-3"], "'lama-3' is the prompt of every chat; no built-in template has that name"),
    ],
)
def test_what_asks_for_nothing_is_accepted_and_said(argv: list[str], said: str, tmp_path: Path) -> None:
    model = gguf_file(tmp_path, TinyModel())
    warnings = check_files(load_settings(["-m", str(model), *argv], {}))
    assert len(warnings) == bool(said)
    assert all(said in warning for warning in warnings)


def test_what_asks_for_nothing_as_a_variable_or_in_a_preset(tmp_path: Path) -> None:
    preset = tmp_path / "models.ini"
    preset.write_text(f"[a]\nmodel = {gguf_file(tmp_path, TinyModel())}\ndefrag-thold = 0.1\ncache-idle-slots = 0\n")
    variables = {"LLAMA_ARG_DEFRAG_THOLD": "1", "LLAMA_ARG_CACHE_IDLE_SLOTS": "1"}
    warnings = check_files(load_settings(["--models-preset", str(preset)], variables))
    assert [warning.split(" has no effect")[0] for warning in warnings] == [
        "LLAMA_ARG_DEFRAG_THOLD",
        f"{preset}:3: [a] 'defrag-thold'",
        f"{preset}:4: [a] 'cache-idle-slots'",
    ]


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@examples(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_value_in_the_yaml_does_worse_than_a_config_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entry = data.draw(st.sampled_from([entry for entry in TABLE if entry.key not in ("models_dir", "models_preset")]))
    value = data.draw(yaml_values)
    section = {entry.key: value}
    document = {"models": {"a": {"path": "x", **section}}} if entry.section == "model" else {"server": section}
    config = tmp_path_factory.mktemp("p") / "pool.yaml"
    config.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    assert len(outcome(MODEL if entry.section == "server" else [], config).splitlines()) <= 1


def test_a_template_that_does_not_compile_stops_the_start_with_its_line(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    settings = load_settings(["-m", str(model), "--chat-template", "{% for %}"], {})
    with pytest.raises(ConfigError, match=r"chat_template: the chat template does not compile: line 1"):
        check_files(settings)


def test_a_quantized_v_cache_without_flash_attention_is_refused() -> None:
    assert "cache_type_v is quantized" in mistake("-m", "m.gguf", "-ctv", "q8_0", "-fa", "off")


def test_a_missing_model_names_the_variable_that_named_it(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models: {demo: {path: m.gguf}}")
    settings = load_settings([], {"LLAMAPOOL_MODELS__DEMO__PATH": "/nope"}, file)
    with pytest.raises(ConfigError, match=r"^LLAMAPOOL_MODELS__DEMO__PATH: no such file"):
        check_files(settings)


@pytest.mark.parametrize("words", [["--api-key", ""], ["--api-key="], ["--api-key", " , "]])
def test_an_empty_key_does_not_open_the_server(words: list[str]) -> None:
    assert "--api-key: invalid value: holds an empty key" in mistake(*MODEL, *words)


@pytest.mark.parametrize("text", ["", "\n# only a comment\n  \n"])
def test_a_key_file_without_a_key_does_not_open_the_server(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    settings = load_settings([*MODEL, "--api-key-file", str(tmp_path / "keys")], {})
    with pytest.raises(ConfigError, match="holds no key"):
        settings.server.all_api_keys()


def test_a_key_file_that_never_ends_is_refused() -> None:
    settings = load_settings([*MODEL, "--api-key-file", "/dev/zero"], {})
    with pytest.raises(ConfigError, match="no text file"):
        settings.server.all_api_keys()


def test_options_are_shown_without_their_sentences_where_only_bytecode_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_source(of: object) -> str:
        raise OSError("could not get source code")

    descriptions.cache_clear()
    monkeypatch.setattr("inspect.getsource", no_source)
    try:
        assert "--ctx-size" in help_text(TABLE)
    finally:
        descriptions.cache_clear()
