"""KV cells after random operations, predicted and measured memory, and device sets, with native models."""

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
from server.llama import fit as fit_module
from server.llama.context.runner import LlamaRunner
from server.llama.devices import add_remote_devices
from server.llama.library import C
from server.llama.loader import LlamaLoader
from server.llama.weights import params as weight_params
from server.pool.memory import HOST, Footprint, held, totals
from server.pool.protocols import Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec, ScaledFile
from tests.model.native_fixtures import F32, Entry, all_logprobs, engine_on, load, open_runner, quantize, spy
from tests.support.ggufs import MODELS, TinyModel, gguf_file, truncated
from tests.unit.engine.builders import request, run

N_SEQ, N_CTX, N_UBATCH = 4, 1024, 64
N_STEPS = 40
TOLERANCE = 5e-3  # of logits; a lost token changes them by ten times as much at least


class RandomSequences:
    """Four sequences with random decodes, truncations, copies and clears, and the tokens that each must hold."""

    def __init__(self, runner: LlamaRunner, seed: int) -> None:
        self.runner = runner
        self.tokens: list[list[int]] = [[] for _ in range(N_SEQ)]
        self._random = random.Random(seed)
        self._text = self._random.choices(range(256, 380), k=N_CTX)

    def change(self) -> None:
        """Clear a sequence, or truncate one that may be a new copy of another."""
        seq, other = self._random.sample(range(N_SEQ), 2)
        action = self._random.choice(["truncate", "copy", "clear"])
        if action == "copy" and self.tokens[seq]:
            self._clear(other)
            self.runner.seq_copy(seq, other)
            self.tokens[other] = list(self.tokens[seq])
        if action == "clear":
            self._clear(seq)
        elif self.tokens[other]:
            self._truncate(other, self._random.randrange(len(self.tokens[other]) + 1))

    def decode(self) -> list[tuple[list[int], list[float]]]:
        """Decode a batch for some of the sequences. Returns the tokens and logits of each."""
        entries, n_left = [], self.runner.info.n_batch
        for seq in self._random.sample(range(N_SEQ), self._random.randrange(1, N_SEQ + 1)):
            at = len(self.tokens[seq])
            n = min(self._random.choice([1, 1, 5, 30, 200]), n_left, N_CTX - 1 - at)
            if n > 0:
                entries.append(Entry(seq, at, self._next(at, n)))
                n_left -= n
        if not entries or not self.runner.decode(entries):
            return []
        for entry in entries:
            self.tokens[entry.seq] += entry.tokens
        return [(self.tokens[entry.seq], all_logprobs(self.runner, i)) for i, entry in enumerate(entries)]

    def _next(self, at: int, n: int) -> list[int]:
        is_shared = self._random.random() < 0.7
        return self._text[at : at + n] if is_shared else self._random.choices(range(256, 380), k=n)

    def _truncate(self, seq: int, n: int) -> None:
        if self.runner.seq_remove(seq, n):
            del self.tokens[seq][n:]
        else:
            self._clear(seq)

    def _clear(self, seq: int) -> None:
        self.runner.seq_remove(seq, 0)
        self.tokens[seq] = []


@pytest.mark.parametrize(
    ("kind", "unified"), [("experts", True), ("hybrid", False), ("sliding-window", True), ("sliding-window", False)]
)
def test_random_operations_on_other_sequences_do_not_change_logits(gguf_folder: Path, kind: str, unified: bool) -> None:
    """Batches have several ubatches: a sliding-window cache once lost tokens of the first for the second."""
    path = gguf_file(gguf_folder, MODELS[kind])
    many = {"n_parallel": N_SEQ, "n_ctx": N_SEQ * N_CTX, "kv_unified": unified, "n_batch": 512, "n_ubatch": N_UBATCH}
    with open_runner(path, **many, **F32) as runner, open_runner(path, n_parallel=1, swa_full=True, **F32) as alone:
        sequences = RandomSequences(runner, seed=1)
        difference = 0.0
        for step in range(N_STEPS):
            sequences.change()
            for tokens, logits in sequences.decode()[step % N_SEQ :][:1]:
                alone.seq_remove(0, 0)
                assert alone.decode([Entry(0, 0, tokens)])
                difference = max(difference, float(np.abs(np.array(logits) - all_logprobs(alone)).max()))
    assert difference < TOLERANCE


MIB = 1 << 20
LAYOUTS = [("plain", False), ("experts", True), ("hybrid", False), ("recurrent", True), ("sliding-window", False)]
MODELS_FOLDER = Path("models")


def spec_of(path: Path, **native: Any) -> ModelSpec:
    return ModelSpec("tiny", path, native=LoadParams(**{"n_parallel": 4, "n_threads": 1, "warmup": False} | native))


def loaded_footprint(spec: ModelSpec) -> Footprint:
    """Load a model with all its contexts. Returns the memory that they use."""
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


def checked_footprint(spec: ModelSpec) -> Footprint:
    """Return the predicted memory, each part of which differs from that of a load by at most a tenth."""
    fit = LlamaLoader().fit(spec)
    actual = loaded_footprint(fit.spec)
    assert set(fit.footprint) == set(actual) == {HOST}
    for part in ("weights", "context", "compute"):
        assert getattr(fit.footprint[HOST], part) == pytest.approx(getattr(actual[HOST], part), rel=0.1), part
    return fit.footprint


@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
def test_a_load_uses_the_predicted_memory(gguf_folder: Path, kind: str, unified: bool) -> None:
    footprint = checked_footprint(spec_of(gguf_file(gguf_folder, MODELS[kind]), kv_unified=unified))
    assert footprint[HOST].weights > 0
    assert footprint[HOST].compute > 0


def test_repacked_weights_count_once(gguf_folder: Path) -> None:
    """Most CPUs repack 4-bit weights. The mapped file is then only page cache."""
    source, target = gguf_file(gguf_folder, TinyModel(n_embd=256)), gguf_folder / "q4_0.gguf"
    if not target.exists():
        quantize(source, target, ftype=2)  # LLAMA_FTYPE_MOSTLY_Q4_0
    fit = LlamaLoader().fit(spec_of(target))
    n_bytes = fit.footprint[HOST].weights
    assert n_bytes <= target.stat().st_size
    assert held(loaded_footprint(fit.spec), fit)[HOST].weights == pytest.approx(n_bytes, rel=0.1)


@pytest.mark.parametrize("changes", [{"instances": 2}, {"embedding": True}, {"n_batch": 64, "n_ubatch": 64}])
def test_the_prediction_depends_on_the_settings(tiny_path: Path, changes: dict[str, Any]) -> None:
    plain = LlamaLoader().fit(spec_of(tiny_path)).footprint
    assert totals(plain) != totals(checked_footprint(spec_of(tiny_path, **changes)))


def test_the_prediction_includes_a_draft_model_and_adapters() -> None:
    native = LoadParams(n_threads=1, warmup=False)
    draft = DraftFile(MODELS_FOLDER / "demo-draft.gguf", replace(native, swa_full=True))
    engine = EngineParams(spec_type="draft-simple")
    alone = spec_of(MODELS_FOLDER / "demo.gguf", n_parallel=-1)
    lora = (ScaledFile(MODELS_FOLDER / "demo-lora.gguf"),)
    more = replace(alone, draft=draft, engine=engine, native=replace(alone.native, lora=lora))
    added = checked_footprint(more)[HOST].weights - checked_footprint(alone)[HOST].weights
    files = [MODELS_FOLDER / name for name in ("demo-draft.gguf", "demo-lora.gguf")]
    assert added == pytest.approx(sum(file.stat().st_size for file in files), rel=0.15)


def test_a_grant_shortens_the_context(tiny_path: Path) -> None:
    spec = spec_of(tiny_path, n_parallel=4, kv_unified=False, fit_ctx=256)
    whole = totals(LlamaLoader().fit(spec).footprint)[HOST]
    fit = LlamaLoader().fit(spec, {HOST: whole - MIB})
    assert 4 * 256 <= fit.spec.native.n_ctx < 4 * 2048
    assert totals(fit.footprint)[HOST] <= whole - MIB
    assert f"context of {fit.spec.native.n_ctx} tokens instead of 8192" in fit.notes[0]
    checked_footprint(fit.spec)


def test_rejects_a_model_that_cannot_fit_with_the_numbers(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelFailed, match=r"needs .* of CPU memory with a context of 8192 tokens .* 1.0 MiB are left for it"
    ):
        LlamaLoader().fit(spec_of(tiny_path), {HOST: MIB})
    assert LlamaLoader().fit(spec_of(tiny_path, fit=False), {HOST: MIB}).spec.native.n_ctx == 0
    monkeypatch.setattr("server.llama.fit.available_bytes", lambda: 8 << 30)
    with pytest.raises(ModelFailed, match=r"its context needs .* 8\.0 GiB of memory are available"):
        LlamaLoader().fit(spec_of(tiny_path, fit=False, n_ctx=1 << 30))


@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
def test_the_memory_of_a_large_context_is_extrapolated_from_smaller_ones(
    gguf_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, unified: bool
) -> None:
    spec = spec_of(gguf_file(gguf_folder, MODELS[kind]), kv_unified=unified, n_ctx=16384)
    measured = LlamaLoader().least(spec)
    monkeypatch.setattr(fit_module, "_MAX_MEASURED_CELLS", 4096)  # 1024 for each sequence: more than the window
    extrapolated = LlamaLoader().least(spec)
    for part in ("weights", "context", "compute"):
        assert getattr(extrapolated[HOST], part) == pytest.approx(getattr(measured[HOST], part), rel=0.02), part


def test_the_memory_of_the_largest_possible_context_is_predicted(tiny_path: Path) -> None:
    """The library needs 100 GB for its records of so many cells; the kernel would kill the process."""
    with pytest.raises(ModelFailed, match=r"with a context of 2147483392 tokens .* 1.0 GiB are left for it"):
        LlamaLoader().fit(spec_of(tiny_path, n_ctx=(1 << 31) - 256), {HOST: 1024 * MIB})


def test_fit_and_load_give_the_same_reason_for_a_broken_file(tiny_path: Path) -> None:
    broken = spec_of(truncated(tiny_path))
    with pytest.raises(ModelFailed) as of_fit:
        LlamaLoader().fit(broken)
    with pytest.raises(ModelFailed) as of_load:
        LlamaLoader().load(broken, lambda _: True)
    assert of_fit.value.reason == of_load.value.reason


def test_no_memory_is_predicted_for_split_tensors(tiny_path: Path) -> None:
    assert LlamaLoader().fit(spec_of(tiny_path, split_mode="tensor")).footprint == {}
    assert LlamaLoader().least(spec_of(tiny_path, split_mode="tensor")) == {}


Names = tuple[str, ...]


@pytest.fixture
def device_sets(monkeypatch: pytest.MonkeyPatch) -> list[Names]:
    """The device sets of the loaded weights. The library gets an empty list, and loads them to the CPU."""
    sets: list[Names] = []

    def device_array(names: Names) -> object:
        sets.append(tuple(names))
        return (ctypes.c_void_p * 1)(None)

    monkeypatch.setattr(weight_params, "device_array", device_array)
    return sets


def load_on(path: Path, *sets: Names | None, draft: DraftFile | None = None, **native: Any) -> Weights:
    spec = spec_of(path, n_ctx=1024, n_parallel=2, instances=len(sets), devices=sets, **native)
    params = EngineParams(spec_type="draft-simple") if draft else EngineParams()
    return LlamaLoader().load(replace(spec, draft=draft, engine=params), lambda _: True)


def test_rpc_servers_need_a_library_with_the_rpc_backend() -> None:
    with pytest.raises(ConfigError, match=r"of llama\.cpp has no RPC backend"):
        add_remote_devices(["127.0.0.1:1"])


@pytest.mark.parametrize(("name", "problem"), [("CUDA77", "is no device"), ("CPU", "is the CPU")])
def test_rejects_a_device_that_does_not_exist_or_is_the_cpu(tiny_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ModelFailed, match=f"device: '{name}' {problem}"):
        load(tiny_path, devices=((name,),))


async def test_instances_share_weights_per_device_set_and_give_the_same_replies(
    tiny_path: Path, device_sets: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, freed = spy(monkeypatch, "llama_model_load_from_file"), spy(monkeypatch, "llama_model_free")
    weights = load_on(tiny_path, ("B", "C"), ("A",), ("B", "C"), embedding=True, pooling="mean")
    assert (len(loads), device_sets) == (2, [("B", "C"), ("A",)])
    openers: list[Callable[[], Any]] = [weights.runner, weights.embedding_runner]
    for open_context in openers:
        runners = [open_context() for _ in range(3)]
        assert runners[0].vocab is runners[2].vocab is not runners[1].vocab
        for runner in runners:
            runner.close()
    async with engine_on(weights, EngineParams(), 3) as engine:
        replies = await run(engine, *(request("the quick brown fox", id_slot=i) for i in range(6)))
    assert [reply.error for reply in replies] == [None] * 6
    assert len({reply.text for reply in replies}) == 1
    assert {arguments[0] for arguments, _ in freed} == {model for _, model in loads}


def test_a_draft_model_is_loaded_to_the_devices_of_its_target(
    tiny_path: Path, device_sets: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = spy(monkeypatch, "llama_model_load_from_file")
    weights = load_on(tiny_path, ("A",), ("B",), draft=DraftFile(tiny_path, LoadParams(n_threads=1)))
    assert (len(loads), device_sets) == (4, [("A",), ("A",), ("B",), ("B",)])
    runners = [weights.runner(), weights.runner()]
    assert all(runner.draft is not None for runner in runners)
    for runner in runners:
        runner.close()
    weights.close()


def test_a_failed_load_frees_the_weights_of_other_device_sets(
    tiny_path: Path, device_sets: list[Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, freed = spy(monkeypatch, "llama_model_load_from_file"), spy(monkeypatch, "llama_model_free")
    first = C.llama_model_load_from_file
    monkeypatch.setattr(C, "llama_model_load_from_file", lambda *arguments: None if made else first(*arguments))
    with pytest.raises(ModelFailed):
        load_on(tiny_path, ("A",), ("B",))
    assert device_sets == [("A",), ("B",)]
    assert [arguments[0] for arguments, _ in freed] == [model for _, model in made] != []
