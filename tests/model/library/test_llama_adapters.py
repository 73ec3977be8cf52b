"""LoRA adapters and control vectors: effect, loading at runtime, rejection of broken files. Uses native models."""

import ctypes
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from server.engine.lora import Adapter
from server.engine.request import Adapters
from server.errors import ModelFailed
from server.llama.context.runner import LlamaRunner
from server.pool.spec import ScaledFile
from tests.model.native_fixtures import (
    all_logprobs,
    load,
    load_failure,
    open_runner,
    prefill,
    prompt_tokens,
    write_gguf,
)
from tests.support.closeness import same_vectors
from tests.support.ggufs import TinyModel, control_vector_file, gguf_file, lora_file, truncated
from tests.support.real_server import ROOT

N_EMBD, N_FF, N_VOCAB = 64, 128, 400
Tensors = Mapping[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def lora(gguf_folder: Path) -> Path:
    return lora_file(gguf_folder, task_name="speak", prompt_prefix="Say: ")


def logits(runner: LlamaRunner, adapters: Adapters = ()) -> list[float]:
    """Prefill the default prompt with `adapters`. Returns the logits after it."""
    runner.seq_remove(0, 0)
    runner.use_adapters(adapters)
    prefill(runner, 0, prompt_tokens(runner.vocab))
    return all_logprobs(runner)


def controlled_logits(path: Path, *files: tuple[Path, float]) -> list[float]:
    """Return the logits of a model that is loaded with scaled control vectors."""
    with open_runner(path, control_vectors=tuple(ScaledFile(*file) for file in files)) as runner:
        return logits(runner)


def test_an_adapter_changes_logits_by_its_scale_while_it_is_active(tiny_path: Path, lora: Path) -> None:
    with open_runner(tiny_path) as bare:
        plain = logits(bare)
    with open_runner(tiny_path, lora=(ScaledFile(lora, 0.5),)) as runner:
        assert logits(runner) == plain
        full, half = logits(runner, ((0, 1.0),)), logits(runner, ((0, 0.5),))
        assert logits(runner) == plain
    assert not np.allclose(full, plain, atol=0.1)
    assert not np.allclose(half, plain, atol=0.1)
    assert not np.allclose(half, full, atol=0.1)


def test_adapters_have_the_metadata_of_their_files(tiny_path: Path, lora: Path, gguf_folder: Path) -> None:
    activated = lora_file(gguf_folder, "activated", invocation_tokens=(5, 6, 7))
    files = (ScaledFile(lora, 0.5), ScaledFile(activated))
    with open_runner(tiny_path, lora=files) as runner:
        first, second = runner.adapters
    assert (first.id, first.path, first.scale) == (0, str(lora), 0.5)
    assert (first.task_name, first.prompt_prefix, first.alora_invocation_tokens) == ("speak", "Say: ", ())
    assert (second.id, second.scale, second.alora_invocation_tokens) == (1, 1.0, (5, 6, 7))


def test_adapters_are_loaded_and_freed_at_runtime(tiny_path: Path, lora: Path, gguf_folder: Path) -> None:
    other = lora_file(gguf_folder, "other", seed=12)
    with open_runner(tiny_path, lora=(ScaledFile(lora), ScaledFile(other))) as runner:
        plain, first, second = logits(runner), logits(runner, ((0, 1.0),)), logits(runner, ((1, 1.0),))
    with closing(load(tiny_path)) as weights, closing(weights.runner()) as runner, closing(weights.runner()) as twin:
        assert logits(runner) == plain
        loaded = runner.load_adapter(Adapter(4, str(lora), 0.0, name="first"))
        assert (loaded.id, loaded.scale, loaded.name, loaded.task_name) == (4, 0.0, "first", "speak")
        assert runner.load_adapter(loaded) == twin.load_adapter(loaded) == loaded
        assert logits(runner, ((4, 1.0),)) == logits(twin, ((4, 1.0),)) == first
        runner.free_adapter(4)  # while both contexts still use it
        assert runner.adapters == twin.adapters == ()
        runner.load_adapter(Adapter(5, str(other), name="second"))
        assert logits(runner) == logits(twin) == plain
        assert logits(twin, ((5, 1.0),)) == second
        with pytest.raises(ModelFailed, match="does not exist"):
            runner.load_adapter(Adapter(6, "none.gguf"))
        for _ in range(2):
            twin.free_adapter(5)
        assert logits(twin) == plain


def test_configured_adapters_change_embeddings(tiny_path: Path, lora: Path) -> None:
    embeddings = []
    for files in ((), (ScaledFile(lora),)):
        weights = load(tiny_path, embedding=True, pooling="mean", lora=files)
        with closing(weights), closing(weights.embedding_runner()) as runner:
            embeddings.append(runner.embed([prompt_tokens(runner.vocab)])[0])
    assert not same_vectors(*embeddings)


def test_adapters_are_loaded_and_freed_while_other_threads_decode(
    tiny_path: Path, lora: Path, gguf_folder: Path
) -> None:
    """Loads and unloads leak no memory. Without `free_adapter` 40 loads leave 60 MiB."""
    other = lora_file(gguf_folder, "another", seed=13)
    with closing(load(tiny_path, lora=(ScaledFile(lora),))) as weights:
        runners = [weights.runner() for _ in range(3)]
        expected = [logits(runners[0], ((0, scale),)) for scale in (1.0, 0.5)]

        def compute(runner: LlamaRunner, ended: threading.Event) -> int:
            n = 0
            while not ended.is_set():
                assert logits(runner, ((0, (1.0, 0.5)[n % 2]),)) == expected[n % 2]
                n += 1
            return n

        def load_and_free(numbers: range) -> int:
            """Load and free adapters while other runners decode. Returns the allocated bytes."""
            ended = threading.Event()
            with ThreadPoolExecutor(2) as threads:
                steps = [threads.submit(compute, runner, ended) for runner in runners[1:]]
                try:
                    for n in numbers:
                        runners[0].load_adapter(Adapter(n, str(other)))
                        logits(runners[0], ((n, 1.0),))
                        runners[0].free_adapter(n)
                finally:
                    ended.set()
            assert all(step.result() > 0 for step in steps)
            return allocated_bytes()

        n_bytes = load_and_free(range(1, 11))
        assert load_and_free(range(11, 51)) - n_bytes < 8 << 20
        for runner in runners:
            runner.close()


class MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = (("words", ctypes.c_size_t * 10),)


def allocated_bytes() -> int:
    """Return the bytes that `malloc` has allocated. Unlike resident memory, they do not depend on fragmentation."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocInfo
    words = mallinfo2().words
    return int(words[4] + words[7])  # hblkhd: mapped blocks; uordblks: in use in arenas


def lora_pair(a: tuple[int, ...], b: tuple[int, ...], name: str = "blk.0.ffn_down.weight") -> Tensors:
    """Return the tensors A and B of an adapter. Shapes are in numpy's order."""
    return {f"{name}.lora_a": np.ones(a, np.float32), f"{name}.lora_b": np.ones(b, np.float32)}


def lora_metadata(**values: tuple[str, Any]) -> Callable[[GGUFWriter], None]:
    """Return a function that adds an adapter's metadata, with `values` (type and value by key) in place of defaults."""

    def describe(writer: GGUFWriter) -> None:
        defaults: dict[str, tuple[str, Any]] = {
            "general.type": ("string", "adapter"),
            "adapter.type": ("string", "lora"),
            "adapter.lora.alpha": ("float32", 4.0),
        }
        for key, (kind, value) in (defaults | values).items():
            getattr(writer, f"add_{kind}")(key, value)

    return describe


as_lora = lora_metadata()
GOOD = lora_pair((4, N_FF), (N_EMBD, 4))
INTEGERS: Tensors = {name: np.ones(array.shape, np.int32) for name, array in GOOD.items()}
BROKEN: dict[str, tuple[Tensors, Callable[[GGUFWriter], None], str]] = {
    "a model": (GOOD, lambda writer: None, "is no LoRA adapter (general.type is '', adapter.type '')"),
    "type as number": (
        GOOD,
        lora_metadata(**{"general.type": ("uint32", 1)}),
        "general.type is of type u32, not string",
    ),
    "alpha as f64": (GOOD, lora_metadata(**{"adapter.lora.alpha": ("float64", 1.0)}), "is of type f64, not f32"),
    "alpha NaN": (GOOD, lora_metadata(**{"adapter.lora.alpha": ("float32", float("nan"))}), "not a finite number"),
    "signed invocation tokens": (
        GOOD,
        lora_metadata(**{"adapter.alora.invocation_tokens": ("array", [-1, 2])}),
        "invocation_tokens is of type [i32], not [u32]",
    ),
    "no tensor B": ({"blk.0.ffn_down.weight.lora_a": GOOD["blk.0.ffn_down.weight.lora_a"]}, as_lora, "not the other"),
    "other tensors": ({"blk.0.ffn_down.weight": np.ones((4, 4), np.float32)}, as_lora, "is no part of a LoRA adapter"),
    "rank differs": (lora_pair((4, N_FF), (N_EMBD, 8)), as_lora, "has another shape"),
    "too wide": (lora_pair((4, N_FF * 2), (N_EMBD, 4)), as_lora, "has another shape"),
    "embedding's rank": (lora_pair((N_VOCAB, 4), (N_EMBD, 8), "token_embd.weight"), as_lora, "has another shape"),
    "integers": (INTEGERS, as_lora, "not for multiplying"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_rejects_a_broken_adapter_with_its_path_and_a_reason(tiny_path: Path, tmp_path: Path, case: str) -> None:
    tensors, describe, expected = BROKEN[case]
    path = write_gguf(tmp_path / "broken.gguf", tensors, describe)
    reason = load_failure(tiny_path, lora=(ScaledFile(path),))
    assert reason.startswith(str(path))
    assert expected in reason


def test_rejects_an_adapter_of_tied_embeddings(tiny_path: Path, tmp_path: Path) -> None:
    """The library would abort in the first decode: the two uses need A and B in opposite order."""
    tied = ROOT / "models" / "demo.gguf"
    path = write_gguf(tmp_path / "tied.gguf", lora_pair((2560, 4), (192, 4), "token_embd.weight"), as_lora)
    assert "which this model uses as its output, too" in load_failure(tied, lora=(ScaledFile(path),))
    path = write_gguf(tmp_path / "untied.gguf", lora_pair((N_VOCAB, 4), (N_EMBD, 4), "token_embd.weight"), as_lora)
    with open_runner(tiny_path) as bare, open_runner(tiny_path, lora=(ScaledFile(path),)) as runner:
        assert logits(runner, ((0, 1.0),)) != logits(bare)


def test_rejects_missing_and_unreadable_adapter_files(tiny_path: Path, tmp_path: Path, lora: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no GGUF at all, but long enough to be one")
    for path, expected in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "is a folder"),
        (text, "not a GGUF file"),
        (truncated(lora), "truncated"),
    ):
        for option in ("lora", "control_vectors"):
            files: dict[str, Any] = {option: (ScaledFile(path),)}
            reason = load_failure(tiny_path, **files)
            assert reason.startswith(str(path))
            assert expected in reason


def test_adapters_of_experts_have_three_dimensions(gguf_folder: Path, tmp_path: Path) -> None:
    model = gguf_file(gguf_folder, TinyModel(n_expert=4))
    name = "blk.0.ffn_down_exps.weight"
    rng = np.random.default_rng(1)
    parts = lora_pair((4, 4, N_FF), (4, N_EMBD, 4), name)
    tensors: Tensors = {key: np.asarray(rng.standard_normal(part.shape, np.float32)) for key, part in parts.items()}
    path = write_gguf(tmp_path / "experts.gguf", tensors, as_lora)
    with open_runner(model, lora=(ScaledFile(path),)) as runner:
        assert not np.allclose(logits(runner, ((0, 1.0),)), logits(runner), atol=1e-3)
    fewer = write_gguf(tmp_path / "fewer.gguf", lora_pair((2, 4, N_FF), (2, N_EMBD, 4), name), as_lora)
    assert "has another shape" in load_failure(model, lora=(ScaledFile(fewer),))


def test_control_vectors_change_logits_and_add_up(tiny_path: Path, gguf_folder: Path) -> None:
    control, other = control_vector_file(gguf_folder), control_vector_file(gguf_folder, "other", seed=22)
    plain, full = controlled_logits(tiny_path), controlled_logits(tiny_path, (control, 1.0))
    assert not np.allclose(full, plain, atol=0.1)
    assert same_vectors(controlled_logits(tiny_path, (control, 0.25), (control, 0.75)), full)
    assert same_vectors(controlled_logits(tiny_path, (control, 1.0), (control, -1.0)), plain)
    assert not np.allclose(controlled_logits(tiny_path, (control, 1.0), (other, 1.0)), full, atol=0.1)


DIRECTION = np.ones(N_EMBD, np.float32)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"direction.1": np.ones(32, np.float32)}, "'direction.1' has 32 numbers, the model 64"),
        ({"direction.1": np.ones(N_EMBD, np.float16)}, "'direction.1' is not one row of F32"),
        ({"direction.0": DIRECTION}, "'direction.0' is not a layer's direction"),
        ({"output.weight": DIRECTION}, "'output.weight' is not a layer's direction"),
        ({"direction.1": np.full(N_EMBD, np.nan, np.float32)}, "is not finite"),
        ({}, "it has no tensors"),
    ],
)
def test_rejects_a_broken_control_vector(tiny_path: Path, tmp_path: Path, tensors: Tensors, expected: str) -> None:
    path = write_gguf(tmp_path / "broken.gguf", tensors, lambda _: None, "controlvector")
    reason = load_failure(tiny_path, control_vectors=(ScaledFile(path),))
    assert expected in reason
    assert str(path) in reason
