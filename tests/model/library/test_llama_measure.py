"""What is measured before a load is what the load takes, on every architecture."""

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine.params import EngineParams
from server.errors import ModelFailed
from server.llama.fit import measure
from server.llama.library import C, start_backend
from server.llama.loader import LlamaLoader
from server.pool.memory import HOST, Footprint, held, totals
from server.pool.spec import DraftFile, LoadParams, ModelSpec, ScaledFile
from tests.support.ggufs import MODELS, TinyModel, gguf_file, truncated

MIB = 1 << 20
LAYOUTS = [("plain", False), ("experts", True), ("hybrid", False), ("recurrent", True), ("sliding-window", False)]
MODELS_FOLDER = Path("models")


def spec_of(path: Path, **native: Any) -> ModelSpec:
    return ModelSpec("tiny", path, native=LoadParams(**{"n_parallel": 4, "n_threads": 1, "warmup": False} | native))


def taken_by(spec: ModelSpec) -> Footprint:
    """By a load with all contexts."""
    weights = LlamaLoader().load(spec, lambda _: True)
    contexts: list[Any] = []
    for _ in range(spec.native.instances):
        contexts += [weights.runner()] if weights.info.generates else []
        contexts += [weights.embedding_runner()] if weights.info.embeds else []
    footprint = weights.footprint()
    for context in contexts:
        context.close()
    weights.close()
    return footprint


def check(spec: ModelSpec) -> Footprint:
    """Measured and taken differ by a tenth at most, in each of the three parts; the first."""
    fit = LlamaLoader().fit(spec)
    taken = taken_by(fit.spec)
    assert set(fit.footprint) == set(taken) == {HOST}
    for part in ("weights", "context", "compute"):
        assert getattr(fit.footprint[HOST], part) == pytest.approx(getattr(taken[HOST], part), rel=0.1), part
    return fit.footprint


@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
def test_a_load_takes_what_was_measured(gguf_folder: Path, kind: str, unified: bool) -> None:
    found = check(spec_of(gguf_file(gguf_folder, MODELS[kind]), kv_unified=unified))
    assert found[HOST].weights > 0
    assert found[HOST].compute > 0


def test_repacked_weights_count_once(gguf_folder: Path) -> None:
    """In 4 bits most processors repack them; the mapped file is the page cache's then."""
    source, target = gguf_file(gguf_folder, TinyModel(n_embd=256)), gguf_folder / "q4_0.gguf"
    if not target.exists():
        start_backend()
        params = C.llama_model_quantize_default_params()
        params.ftype, params.nthread = 2, 1  # LLAMA_FTYPE_MOSTLY_Q4_0
        assert C.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0
    fit = LlamaLoader().fit(spec_of(target))
    n_bytes = fit.footprint[HOST].weights
    assert n_bytes <= target.stat().st_size
    assert held(taken_by(fit.spec), fit)[HOST].weights == pytest.approx(n_bytes, rel=0.1)


@pytest.mark.parametrize("changes", [{"instances": 2}, {"embedding": True}, {"n_batch": 64, "n_ubatch": 64}])
def test_settings_count(tiny_path: Path, changes: dict[str, Any]) -> None:
    plain, changed = (LlamaLoader().fit(spec_of(tiny_path, **some)).footprint for some in ({}, changes))
    assert totals(plain) != totals(changed)
    check(spec_of(tiny_path, **changes))


def test_a_draft_model_and_adapters_count() -> None:
    native = LoadParams(n_threads=1, warmup=False)
    draft = DraftFile(MODELS_FOLDER / "demo-draft.gguf", replace(native, swa_full=True))
    engine = EngineParams(spec_type="draft-simple")
    alone = spec_of(MODELS_FOLDER / "demo.gguf", n_parallel=-1)
    lora = (ScaledFile(MODELS_FOLDER / "demo-lora.gguf"),)
    more = replace(alone, draft=draft, engine=engine, native=replace(alone.native, lora=lora))
    added = check(more)[HOST].weights - check(alone)[HOST].weights
    files = [MODELS_FOLDER / name for name in ("demo-draft.gguf", "demo-lora.gguf")]
    assert added == pytest.approx(sum(file.stat().st_size for file in files), rel=0.15)


def test_a_grant_shortens_the_context(tiny_path: Path) -> None:
    spec = spec_of(tiny_path, n_parallel=4, kv_unified=False, fit_ctx=256)
    whole = totals(LlamaLoader().fit(spec).footprint)[HOST]
    fit = LlamaLoader().fit(spec, {HOST: whole - MIB})
    assert 4 * 256 <= fit.spec.native.n_ctx < 4 * 2048
    assert totals(fit.footprint)[HOST] <= whole - MIB
    assert f"context of {fit.spec.native.n_ctx} tokens instead of 8192" in fit.notes[0]
    check(fit.spec)


def test_what_can_never_fit_is_refused_with_the_numbers(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelFailed, match=r"needs .* of CPU memory with a context of 8192 tokens .* 1.0 MiB are left for it"
    ):
        LlamaLoader().fit(spec_of(tiny_path), {HOST: MIB})
    assert LlamaLoader().fit(spec_of(tiny_path, fit=False), {HOST: MIB}).spec.native.n_ctx == 0
    monkeypatch.setattr("server.llama.fit.memory.available_bytes", lambda: 8 << 30)
    with pytest.raises(ModelFailed, match=r"its context needs .* 8\.0 GiB of memory are available"):
        LlamaLoader().fit(spec_of(tiny_path, fit=False, n_ctx=1 << 30))


@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
def test_a_very_large_context_is_told_by_smaller_ones(
    gguf_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, unified: bool
) -> None:
    spec = spec_of(gguf_file(gguf_folder, MODELS[kind]), kv_unified=unified, n_ctx=16384)
    whole = LlamaLoader().least(spec)
    monkeypatch.setattr(measure, "_MOST_CELLS", 4096)  # a thousand of each sequence: more than the window
    told = LlamaLoader().least(spec)
    for part in ("weights", "context", "compute"):
        assert getattr(told[HOST], part) == pytest.approx(getattr(whole[HOST], part), rel=0.02), part


def test_no_context_is_too_large_to_be_measured(tiny_path: Path) -> None:
    """The library's own notes of so many cells would take 100 GB, and the process be killed."""
    with pytest.raises(ModelFailed, match=r"with a context of 2147483392 tokens .* 1.0 GiB are left for it"):
        LlamaLoader().fit(spec_of(tiny_path, n_ctx=(1 << 31) - 256), {HOST: 1024 * MIB})


def test_a_broken_file_fails_as_its_load_does(tiny_path: Path) -> None:
    broken = spec_of(truncated(tiny_path))
    with pytest.raises(ModelFailed) as measured:
        LlamaLoader().fit(broken)
    with pytest.raises(ModelFailed) as loaded:
        LlamaLoader().load(broken, lambda _: True)
    assert measured.value.reason == loaded.value.reason


def test_where_tensors_are_split_nothing_is_measured(tiny_path: Path) -> None:
    assert LlamaLoader().fit(spec_of(tiny_path, split_mode="tensor")).footprint == {}
    assert LlamaLoader().least(spec_of(tiny_path, split_mode="tensor")) == {}
