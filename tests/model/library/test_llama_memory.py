"""The cells of a context, what a model takes of memory before and after its load, and the devices that it may use."""

import ctypes
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.params import EngineParams
from server.errors import ConfigError, ModelFailed
from server.llama import fit as measure
from server.llama.context.runner import LlamaRunner
from server.llama.devices import add_remote_devices
from server.llama.library import C
from server.llama.loader import LlamaLoader
from server.llama.weights import params as loading
from server.pool.memory import HOST, Footprint, held, totals
from server.pool.protocols import Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec, ScaledFile
from tests.model.native_fixtures import F32, Entry, engine_on, load, open_runner, quantize, raw_logits, spy
from tests.support.ggufs import MODELS, TinyModel, gguf_file, truncated
from tests.unit.engine.builders import request, run

N_SEQ, N_CTX, MICRO_BATCH = 4, 1024, 64
N_STEPS = 40
ALIKE = 5e-3  # difference of logits; the smallest that a lost token makes is ten times as large


class Random:
    """Random decodes, cuts, copies and clears of four sequences, with a record of what each must hold."""

    def __init__(self, runner: LlamaRunner, seed: int) -> None:
        self.runner = runner
        self.held: list[list[int]] = [[] for _ in range(N_SEQ)]
        self._random = random.Random(seed)
        self._text = self._random.choices(range(256, 380), k=N_CTX)

    def disturb(self) -> None:
        """Cut, copy or clear something."""
        seq, other = self._random.sample(range(N_SEQ), 2)
        what = self._random.choice(["cut", "copy", "clear"])
        if what == "copy" and self.held[seq]:
            self._clear(other)
            self.runner.seq_copy(seq, other)
            self.held[other] = list(self.held[seq])
        if what == "clear":
            self._clear(seq)
        elif self.held[other]:
            self._cut(other, self._random.randrange(len(self.held[other]) + 1))

    def decode(self) -> list[tuple[list[int], list[float]]]:
        """One batch for some of the sequences: what each holds then, with its logits."""
        entries, left = [], self.runner.info.n_batch
        for seq in self._random.sample(range(N_SEQ), self._random.randrange(1, N_SEQ + 1)):
            at = len(self.held[seq])
            n = min(self._random.choice([1, 1, 5, 30, 200]), left, N_CTX - 1 - at)
            if n > 0:
                entries.append(Entry(seq, at, self._next(at, n)))
                left -= n
        if not entries or not self.runner.decode(entries):
            return []
        for entry in entries:
            self.held[entry.seq] += entry.tokens
        return [(self.held[entry.seq], raw_logits(self.runner, i)) for i, entry in enumerate(entries)]

    def _next(self, at: int, n: int) -> list[int]:
        common = self._random.random() < 0.7
        return self._text[at : at + n] if common else self._random.choices(range(256, 380), k=n)

    def _cut(self, seq: int, n: int) -> None:
        if self.runner.seq_remove(seq, n):
            del self.held[seq][n:]
        else:
            self._clear(seq)

    def _clear(self, seq: int) -> None:
        self.runner.seq_remove(seq, 0)
        self.held[seq] = []


@pytest.mark.parametrize(
    ("kind", "unified"), [("experts", True), ("hybrid", False), ("sliding-window", True), ("sliding-window", False)]
)
def test_a_decode_is_not_changed_by_what_went_before(gguf_folder: Path, kind: str, unified: bool) -> None:
    """With batches larger than a micro-batch; a small window's cache once lost tokens of the first for the second."""
    path = gguf_file(gguf_folder, MODELS[kind])
    many = {"n_parallel": N_SEQ, "n_ctx": N_SEQ * N_CTX, "kv_unified": unified, "n_batch": 512, "n_ubatch": MICRO_BATCH}
    with open_runner(path, **many, **F32) as runner, open_runner(path, n_parallel=1, swa_full=True, **F32) as alone:
        sequences = Random(runner, seed=1)
        worst = 0.0
        for step in range(N_STEPS):
            sequences.disturb()
            for tokens, logits in sequences.decode()[step % N_SEQ :][:1]:
                alone.seq_remove(0, 0)
                assert alone.decode([Entry(0, 0, tokens)])
                worst = max(worst, float(np.abs(np.array(logits) - raw_logits(alone)).max()))
    assert worst < ALIKE


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
        quantize(source, target, ftype=2)  # LLAMA_FTYPE_MOSTLY_Q4_0
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
    monkeypatch.setattr("server.llama.fit.available_bytes", lambda: 8 << 30)
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


Names = tuple[str, ...]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Names]:
    """Sets of names that were looked for; the library gets an empty list for each."""
    seen: list[Names] = []

    def no_devices(names: Names) -> object:
        seen.append(tuple(names))
        return (ctypes.c_void_p * 1)(None)

    monkeypatch.setattr(loading, "device_array", no_devices)
    return seen


def load_on(path: Path, *sets: Names | None, draft: DraftFile | None = None, **native: Any) -> Weights:
    spec = spec_of(path, n_ctx=1024, n_parallel=2, instances=len(sets), devices=sets, **native)
    params = EngineParams(spec_type="draft-simple") if draft else EngineParams()
    return LlamaLoader().load(replace(spec, draft=draft, engine=params), lambda _: True)


def test_machines_elsewhere_need_a_library_that_can_reach_them() -> None:
    with pytest.raises(ConfigError, match=r"of llama\.cpp has no RPC backend"):
        add_remote_devices(["127.0.0.1:1"])


@pytest.mark.parametrize(("name", "problem"), [("CUDA77", "is no device"), ("CPU", "is the CPU")])
def test_a_device_that_cannot_be_is_named(tiny_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ModelFailed, match=f"device: '{name}' {problem}"):
        load(tiny_path, devices=((name,),))


async def test_instances_on_different_sets_answer_alike_from_weights_of_their_own(
    tiny_path: Path, asked: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, freed = spy(monkeypatch, "llama_model_load_from_file"), spy(monkeypatch, "llama_model_free")
    weights = load_on(tiny_path, ("B", "C"), ("A",), ("B", "C"), embedding=True, pooling="mean")
    assert (len(loads), asked) == (2, [("B", "C"), ("A",)])
    makes: list[Callable[[], Any]] = [weights.runner, weights.embedding_runner]
    for make in makes:
        runners = [make() for _ in range(3)]
        assert runners[0].vocab is runners[2].vocab is not runners[1].vocab
        for runner in runners:
            runner.close()
    async with engine_on(weights, EngineParams(), 3) as engine:
        replies = await run(engine, *(request("the quick brown fox", id_slot=i) for i in range(6)))
    assert [reply.error for reply in replies] == [None] * 6
    assert len({reply.text for reply in replies}) == 1
    assert {arguments[0] for arguments, _ in freed} == {model for _, model in loads}


def test_a_draft_model_is_loaded_where_its_target_is(
    tiny_path: Path, asked: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = spy(monkeypatch, "llama_model_load_from_file")
    weights = load_on(tiny_path, ("A",), ("B",), draft=DraftFile(tiny_path, LoadParams(n_threads=1)))
    assert (len(loads), asked) == (4, [("A",), ("A",), ("B",), ("B",)])
    runners = [weights.runner(), weights.runner()]
    assert all(runner.draft is not None for runner in runners)
    for runner in runners:
        runner.close()
    weights.close()


def test_a_second_load_that_fails_leaves_nothing_of_the_first(
    tiny_path: Path, asked: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, freed = spy(monkeypatch, "llama_model_load_from_file"), spy(monkeypatch, "llama_model_free")
    first = C.llama_model_load_from_file
    monkeypatch.setattr(C, "llama_model_load_from_file", lambda *given: None if made else first(*given))
    with pytest.raises(ModelFailed):
        load_on(tiny_path, ("A",), ("B",))
    assert asked == [("A",), ("B",)]
    assert [arguments[0] for arguments, _ in freed] == [model for _, model in made] != []
