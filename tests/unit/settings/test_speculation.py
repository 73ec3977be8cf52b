"""Options of speculative decoding, in llama-server's words."""

from pathlib import Path

import pytest

from server.errors import ConfigError
from server.settings import check_files, load_settings
from tests.unit.settings.builders import spec


def test_the_text_is_looked_up_unless_asked_not_to() -> None:
    assert spec().engine.looks_up
    assert spec().engine.n_draft_max == 16
    assert spec().engine.asked_spec_type == "none"
    assert spec().draft is None
    assert not spec("--spec-type", "none").engine.looks_up
    assert spec("--spec-type", "none").engine.n_draft_max == 0


def test_a_draft_model_is_used_without_further_words() -> None:
    found = spec("-md", "draft.gguf", "-c", "4096", "-np", "2", "-t", "3", "--lora", "a.gguf", "-ctkd", "q8_0")
    assert found.engine.asked_spec_type == "draft-simple"
    assert found.engine.looks_up
    assert found.draft is not None
    native = found.draft.native
    assert (found.draft.path, native.n_ctx, native.n_parallel, native.n_threads) == (Path("draft.gguf"), 4096, 2, 3)
    assert (native.lora, native.cache_type_k, found.native.cache_type_k) == ((), "q8_0", "f16")


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ((), (-1, -1)),
        (("-t", "4", "-tb", "6"), (4, 6)),
        (("-t", "4", "-tb", "6", "-td", "2"), (2, 2)),
        (("-t", "4", "-tbd", "3"), (4, 3)),
        (("-td", "2", "-tbd", "3"), (2, 3)),
    ],
)
def test_threads_of_the_draft_follow_llama_servers_rules(flags: tuple[str, ...], threads: tuple[int, int]) -> None:
    found = spec("-md", "draft.gguf", *flags).draft
    assert found is not None
    assert (found.native.n_threads, found.native.n_threads_batch) == threads


def test_the_variables_are_llama_servers() -> None:
    found = spec(
        env={
            "LLAMA_ARG_SPEC_DRAFT_MODEL": "draft.gguf",
            "LLAMA_ARG_SPEC_TYPE": "draft-simple,ngram-simple",
            "LLAMA_ARG_SPEC_DRAFT_N_MAX": "8",
            "LLAMA_ARG_SPEC_DRAFT_N_MIN": "2",
            "LLAMA_ARG_SPEC_DRAFT_P_MIN": "0.5",
            "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "all",
        }
    )
    engine = found.engine
    assert (engine.spec_draft_max, engine.spec_draft_min, engine.spec_draft_p_min) == (8, 2, 0.5)
    assert engine.spec_type == "ngram-simple,draft-simple"
    assert engine.n_draft_max == 48
    assert found.draft is not None
    assert found.draft.native.n_gpu_layers == -2


def test_the_kinds_have_llama_servers_sizes() -> None:
    """common/common.h, common_params_speculative_ngram_map and its neighbours."""
    engine = spec("--spec-type", "ngram-mod,ngram-map-k4v,ngram-cache").engine
    assert engine.spec_type == "ngram-map-k4v,ngram-mod,ngram-cache"
    assert (engine.spec_ngram_simple_size_n, engine.spec_ngram_simple_size_m) == (12, 48)
    assert (engine.spec_ngram_map_k4v_size_n, engine.spec_ngram_map_k4v_size_m) == (12, 48)
    assert (engine.spec_ngram_mod_n_match, engine.spec_ngram_mod_n_max) == (24, 64)
    assert engine.n_draft_max == 64


def test_the_models_own_heads_are_loaded_when_asked_for() -> None:
    found = spec("--spec-type", "draft-mtp,ngram-mod", "--spec-draft-n-max", "3", "-np", "2")
    assert found.native.mtp
    assert found.engine.asked_spec_type == "ngram-mod,draft-mtp"
    assert (found.engine.drafts, found.engine.spec_draft_max) == (True, 3)
    assert not spec().native.mtp


def test_none_leaves_the_draft_model_alone() -> None:
    found = spec("-md", "draft.gguf", "--spec-type", "none")
    assert found.draft is None
    assert found.engine.n_draft_max == 0


def test_a_draft_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF....")
    with pytest.raises(ConfigError, match=r"-md: no such file: gone\.gguf"):
        check_files(load_settings(["-m", str(model), "-md", "gone.gguf"], {}))


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--spec-type", "draft-simple"), "needs draft_model"),
        (("--spec-type", "draft-eagle3"), "'draft-eagle3', a kind of llama-server that Llamapool does not have"),
        (("--spec-type", "draft-mtp,draft-simple", "-md", "draft.gguf"), "remove one"),
        (("--spec-type", "draft-mtp", "-md", "draft.gguf"), "in the model's own file"),
        (("--spec-ngram-mod-n-match", "0"), "--spec-ngram-mod-n-match: invalid"),
        (("--spec-type", "ngram"), "unknown kind 'ngram'; known: auto, none, ngram-simple"),
        (("--spec-type", "none,ngram-simple"), "should be auto or none alone"),
        (("--spec-type", ""), "should be auto, none, or some of"),
        (("--spec-draft-p-min", "1.5"), "--spec-draft-p-min: invalid"),
        (("-devd", "CUDA0;CUDA1"), "-devd: invalid value 'CUDA0;CUDA1': should be one set of devices"),
        (("--spec-ngram-map-k-min-hits", "5"), "--spec-ngram-map-k-min-hits is not supported"),
        (("-lcs", "a.bin"), "-lcs is not supported: .* use --spec-type auto"),
        (("--lookup-cache-dynamic", "b.bin"), "--lookup-cache-dynamic is not supported: .* use --spec-type auto"),
        (("--spec-ngram-map-k4v-min-hits", "2"), "not supported: .* use --spec-ngram-map-k4v-size-m"),
        (("--spec-ngram-mod-n-min", "4"), "--spec-ngram-mod-n-min is not supported"),
    ],
)
def test_what_can_not_be_is_refused_by_name(argv: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        spec(*argv)


def test_guesses_that_are_taken_by_chance() -> None:
    draft = ("-md", "draft.gguf", "--spec-draft-n-max", "3")
    assert spec(*draft, "--spec-synth-rates", "0.9,0.5,0").engine.spec_synth == (0.9, 0.5, 0.0)
    assert spec(*draft, env={"LLAMA_ARG_SPEC_SYNTH_LEN": "4"}).engine.spec_synth == (1.0, 1.0, 1.0)
    assert spec(*draft).engine.spec_synth == ()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--spec-synth-len", "2"), "need draft_model"),
        (("-md", "d", "--spec-synth-len", "2", "--spec-synth-rates", "1"), "exclude each other"),
        (("-md", "d", "--spec-synth-rates", "1,1"), "as many as spec_draft_max, 16, not 2"),
        (("-md", "d", "--spec-draft-n-max", "2", "--spec-synth-rates", "0.5,0.6"), "none above the one before"),
        (("-md", "d", "--spec-draft-n-max", "2", "--spec-synth-rates", "1.5,0"), "between 0 and 1"),
        (("-md", "d", "--spec-draft-n-max", "2", "--spec-synth-len", "3.5"), "between 1 and 3"),
    ],
)
def test_rates_that_cannot_be(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec(*flags)
