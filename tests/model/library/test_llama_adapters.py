"""LoRA adapters and control vectors on real files: what they change, and that a wrong file never ends the process."""

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
from tests.model.native_fixtures import failure, load, open_runner, prefill, prompt_tokens, raw_logits, write_gguf
from tests.support.closeness import same_vectors
from tests.support.ggufs import TinyModel, control_vector_file, gguf_file, lora_file, truncated
from tests.support.real_server import ROOT

N_EMBD, N_FF, N_VOCAB = 64, 128, 400
Tensors = Mapping[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def lora(gguf_folder: Path) -> Path:
    return lora_file(gguf_folder, task_name="speak", prompt_prefix="Say: ")


@pytest.fixture(scope="module")
def control(gguf_folder: Path) -> Path:
    return control_vector_file(gguf_folder)


def logits(runner: LlamaRunner, adapters: Adapters = ()) -> list[float]:
    """After the standard prompt, read from the beginning under `adapters`."""
    runner.seq_remove(0, 0)
    runner.use_adapters(adapters)
    prefill(runner, 0, prompt_tokens(runner.vocab))
    return raw_logits(runner)


def controlled(path: Path, *files: tuple[Path, float], **native: Any) -> list[float]:
    vectors = tuple(ScaledFile(*file) for file in files)
    with open_runner(path, control_vectors=vectors, **native) as runner:
        return logits(runner)


def test_an_adapter_changes_what_is_computed_by_its_scale_and_not_when_it_is_off(tiny_path: Path, lora: Path) -> None:
    with open_runner(tiny_path) as bare:
        plain = logits(bare)
    with open_runner(tiny_path, lora=(ScaledFile(lora, 0.5),)) as runner:
        assert logits(runner) == plain
        whole, half = logits(runner, ((0, 1.0),)), logits(runner, ((0, 0.5),))
        assert logits(runner) == plain
    assert not np.allclose(whole, plain, atol=0.1)
    assert not np.allclose(half, plain, atol=0.1)
    assert not np.allclose(half, whole, atol=0.1)


def test_adapters_say_what_their_files_say(tiny_path: Path, lora: Path, gguf_folder: Path) -> None:
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
        runner.free_adapter(4)  # both contexts compute with it
        assert runner.adapters == twin.adapters == ()
        runner.load_adapter(Adapter(5, str(other), name="second"))
        assert logits(runner) == logits(twin) == plain
        assert logits(twin, ((5, 1.0),)) == second
        with pytest.raises(ModelFailed, match="does not exist"):
            runner.load_adapter(Adapter(6, "none.gguf"))
        for _ in range(2):
            twin.free_adapter(5)
        assert logits(twin) == plain


def test_configured_adapters_change_embeddings_and_are_freed_after_them(tiny_path: Path, lora: Path) -> None:
    found = []
    for files in ((), (ScaledFile(lora),)):
        weights = load(tiny_path, embedding=True, pooling="mean", lora=files)
        with closing(weights), closing(weights.embedding_runner()) as runner:
            found.append(runner.embed([prompt_tokens(runner.vocab)])[0])
    assert not same_vectors(found[0][0].tolist(), found[1][0].tolist())


def test_steps_of_other_threads_and_loads_of_adapters_do_not_disturb_each_other(
    tiny_path: Path, lora: Path, gguf_folder: Path
) -> None:
    """Loads and unloads leave no memory; without `free_adapter` 40 loads leave 60 MiB."""
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
            """Return the bytes in use after other runners have computed next to it."""
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
            return allocated()

        used = load_and_free(range(1, 11))
        assert load_and_free(range(11, 51)) - used < 8 << 20
        for runner in runners:
            runner.close()


class MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = (("words", ctypes.c_size_t * 10),)


def allocated() -> int:
    """Bytes that `malloc` has given out. Unlike resident memory, this doesn't depend on fragmentation."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocInfo
    words = mallinfo2().words
    return int(words[4] + words[7])  # in mapped blocks, and in use in arenas


def pair(a: tuple[int, ...], b: tuple[int, ...], name: str = "blk.0.ffn_down.weight") -> Tensors:
    """numpy's shapes, the row's length last."""
    return {f"{name}.lora_a": np.ones(a, np.float32), f"{name}.lora_b": np.ones(b, np.float32)}


def _lora_with(**values: tuple[str, Any]) -> Callable[[GGUFWriter], None]:
    def describe(writer: GGUFWriter) -> None:
        known: dict[str, tuple[str, Any]] = {
            "general.type": ("string", "adapter"),
            "adapter.type": ("string", "lora"),
            "adapter.lora.alpha": ("float32", 4.0),
        }
        for key, (kind, value) in (known | values).items():
            getattr(writer, f"add_{kind}")(key, value)

    return describe


as_lora = _lora_with()
GOOD = pair((4, N_FF), (N_EMBD, 4))
INTEGERS: Tensors = {name: np.ones(array.shape, np.int32) for name, array in GOOD.items()}
BROKEN: dict[str, tuple[Tensors, Callable[[GGUFWriter], None], str]] = {
    "a model": (GOOD, lambda writer: None, "is no LoRA adapter (general.type is '', adapter.type '')"),
    "type as number": (GOOD, _lora_with(**{"general.type": ("uint32", 1)}), "general.type is of type u32, not string"),
    "alpha as f64": (GOOD, _lora_with(**{"adapter.lora.alpha": ("float64", 1.0)}), "is of type f64, not f32"),
    "alpha NaN": (GOOD, _lora_with(**{"adapter.lora.alpha": ("float32", float("nan"))}), "not a finite number"),
    "invocation of signed": (
        GOOD,
        _lora_with(**{"adapter.alora.invocation_tokens": ("array", [-1, 2])}),
        "invocation_tokens is of type [i32], not [u32]",
    ),
    "no partner": ({"blk.0.ffn_down.weight.lora_a": GOOD["blk.0.ffn_down.weight.lora_a"]}, as_lora, "not the other"),
    "other tensors": ({"blk.0.ffn_down.weight": np.ones((4, 4), np.float32)}, as_lora, "is no part of a LoRA adapter"),
    "rank differs": (pair((4, N_FF), (N_EMBD, 8)), as_lora, "has another shape"),
    "too wide": (pair((4, N_FF * 2), (N_EMBD, 4)), as_lora, "has another shape"),
    "embedding's rank": (pair((N_VOCAB, 4), (N_EMBD, 8), "token_embd.weight"), as_lora, "has another shape"),
    "integers": (INTEGERS, as_lora, "not for multiplying"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_adapter_is_refused_with_its_name_and_the_reason(tiny_path: Path, tmp_path: Path, case: str) -> None:
    tensors, describe, expected = BROKEN[case]
    path = write_gguf(tmp_path / "broken.gguf", tensors, describe)
    found = failure(tiny_path, lora=(ScaledFile(path),))
    assert found.startswith(str(path))
    assert expected in found


def test_an_embedding_that_is_the_output_too_is_not_adapted(tiny_path: Path, tmp_path: Path) -> None:
    """The library aborts in the first decode: a and b change places for one of both uses."""
    tied = ROOT / "models" / "demo.gguf"
    path = write_gguf(tmp_path / "tied.gguf", pair((2560, 4), (192, 4), "token_embd.weight"), as_lora)
    assert "which this model uses as its output, too" in failure(tied, lora=(ScaledFile(path),))
    path = write_gguf(tmp_path / "untied.gguf", pair((N_VOCAB, 4), (N_EMBD, 4), "token_embd.weight"), as_lora)
    with open_runner(tiny_path) as bare, open_runner(tiny_path, lora=(ScaledFile(path),)) as runner:
        assert logits(runner, ((0, 1.0),)) != logits(bare)


def test_files_that_are_none_are_refused(tiny_path: Path, tmp_path: Path, lora: Path) -> None:
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
            found = failure(tiny_path, **files)
            assert found.startswith(str(path))
            assert expected in found


def test_experts_get_adapters_of_three_dimensions(gguf_folder: Path, tmp_path: Path) -> None:
    model = gguf_file(gguf_folder, TinyModel(n_expert=4))
    name = "blk.0.ffn_down_exps.weight"
    rng = np.random.default_rng(1)
    parts = pair((4, 4, N_FF), (4, N_EMBD, 4), name)
    tensors: Tensors = {key: np.asarray(rng.standard_normal(part.shape, np.float32)) for key, part in parts.items()}
    path = write_gguf(tmp_path / "experts.gguf", tensors, as_lora)
    with open_runner(model, lora=(ScaledFile(path),)) as runner:
        assert not np.allclose(logits(runner, ((0, 1.0),)), logits(runner), atol=1e-3)
    fewer = write_gguf(tmp_path / "fewer.gguf", pair((2, 4, N_FF), (2, N_EMBD, 4), name), as_lora)
    assert "has another shape" in failure(model, lora=(ScaledFile(fewer),))


def test_control_vectors_change_what_is_computed_and_add_up(tiny_path: Path, control: Path, gguf_folder: Path) -> None:
    other = control_vector_file(gguf_folder, "other", seed=22)
    plain, whole = controlled(tiny_path), controlled(tiny_path, (control, 1.0))
    assert not np.allclose(whole, plain, atol=0.1)
    assert same_vectors(controlled(tiny_path, (control, 0.25), (control, 0.75)), whole)
    assert same_vectors(controlled(tiny_path, (control, 1.0), (control, -1.0)), plain)
    assert not np.allclose(controlled(tiny_path, (control, 1.0), (other, 1.0)), whole, atol=0.1)


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
def test_a_wrong_control_vector_is_refused(tiny_path: Path, tmp_path: Path, tensors: Tensors, expected: str) -> None:
    path = write_gguf(tmp_path / "wrong.gguf", tensors, lambda _: None, "controlvector")
    found = failure(tiny_path, control_vectors=(ScaledFile(path),))
    assert expected in found
    assert str(path) in found
