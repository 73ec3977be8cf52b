"""What fits the memory: flags, variables and YAML of ``fit``."""

from pathlib import Path

import pytest

from server.errors import ConfigError
from server.options.specs import WHOLE
from server.pool.spec import LoadParams
from server.settings import load_settings, model_specs


def native(*argv: str, env: dict[str, str] | None = None, config: Path | None = None) -> LoadParams:
    words = list(argv) if config else ["-m", "model.gguf", *argv]
    return model_specs(load_settings(words, env or {}, config))[0].native


def test_models_are_fitted_unless_told_otherwise() -> None:
    assert (native().fit, native().fit_target, native().fit_ctx) == (True, (1024,), 4096)
    assert not native("-fit", "off").fit
    assert not native(env={"LLAMA_ARG_FIT": "0"}).fit
    assert native("--fit", "on", env={"LLAMA_ARG_FIT": "0"}).fit


def test_yaml_knows_on_and_off(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models: {a: {path: a, fit: off, fit_target: 512, fit_ctx: 8192}}", encoding="utf-8")
    found = native(config=config)
    assert (found.fit, found.fit_target, found.fit_ctx) == (False, (512,), 8192)


@pytest.mark.parametrize("text", ["512,0", "512/0"])
def test_what_stays_free_may_differ_between_devices(text: str) -> None:
    assert native("-fitt", text).fit_target == (512, 0)
    assert native(env={"LLAMA_ARG_FIT_TARGET": text}).fit_target == (512, 0)


def test_a_context_of_0_is_the_whole_one() -> None:
    assert (native().n_ctx, native().fit_ctx) == (0, 4096)
    assert (native("-c", "0").n_ctx, native("-c", "0").fit_ctx) == (0, WHOLE)
    assert (native("-c", "512").n_ctx, native("-c", "512").fit_ctx) == (512, 4096)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fit", "perhaps"), r"--fit: invalid value 'perhaps': should be true or false"),
        (("-fitt", "-5"), r"-fitt: invalid value"),
        (("-fitt", "many"), r"-fitt: invalid value"),
        (("-fitc", "0"), r"-fitc: invalid value '0': should be greater than or equal to 1"),
    ],
)
def test_mistakes_name_the_flag(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        native(*words)


def test_a_limit_of_each_slot_sizes_an_unset_context() -> None:
    """llama-server's ``--kv-unified-per-slot``."""
    found = native("--kv-unified-per-slot", "1000", "-np", "3")
    assert (found.n_ctx, found.n_ctx_slot) == (3000, 1000)
    assert native("--kv-unified-per-slot", "1000").n_ctx == 4000
    assert native("--kv-unified-per-slot", "1000", "-c", "2000").n_ctx == 2000
    assert native("--kv-unified-per-slot", "1000", "-c", "0").n_ctx == 0


def test_tensors_may_be_split() -> None:
    assert native("-sm", "tensor").split_mode == "tensor"


def test_stop_strings_of_requests_that_name_none() -> None:
    argv = ["-m", "model.gguf", "-r", "User:", "--reverse-prompt", "a\\n"]
    (spec,) = model_specs(load_settings(argv, {}))
    assert spec.stop == ("User:", "a\n")
