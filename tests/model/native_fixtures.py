"""Tiny real models for the tests of the native side: files are written once a session, contexts once a test."""

import asyncio
import ctypes
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFWriter

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import SamplingParams
from server.engine.runner_api import BatchEntry
from server.errors import ModelFailed
from server.llama.context.runner import LlamaRunner
from server.llama.library import C, start_backend
from server.llama.loader import LlamaLoader
from server.llama.vocab import LlamaVocab
from server.llama.weights.model import LlamaWeights
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.ggufs.writing import finish

GREEDY = SamplingParams(temperature=0.0, seed=1)
# no truncation, no randomness but the draw
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
F32: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
"""Alike in batches of every shape."""
PROMPT = "the quick brown fox jumps over the lazy dog"

Probabilities = npt.NDArray[np.float64]


Entry = partial(BatchEntry, n_outputs=1)


def spy(monkeypatch: pytest.MonkeyPatch, name: str, library: Any = C) -> list[tuple[tuple[Any, ...], Any]]:
    """Record the arguments and results of a function of the library."""
    function, calls = getattr(library, name), list[tuple[tuple[Any, ...], Any]]()

    def recorded(*arguments: Any) -> Any:
        found = function(*arguments)
        calls.append((arguments, found))
        return found

    monkeypatch.setattr(library, name, recorded)
    return calls


def write_gguf(
    path: Path,
    tensors: Mapping[str, npt.NDArray[Any]],
    describe: Callable[[GGUFWriter], None] = lambda _: None,
    arch: str = "llama",
) -> Path:
    """Write a file of these tensors, with the values that `describe` adds."""
    writer = GGUFWriter(path, arch)
    describe(writer)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    finish(writer)
    return path


def quantize(source: Path, target: Path, ftype: int) -> None:
    """Write a model with weights of another type. ``ftype``: of enum llama_ftype, 0 for F32."""
    start_backend()
    params = C.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftype, 1, True
    assert C.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0


def load(path: Path, *, mmproj: Path | None = None, engine: EngineParams | None = None, **native: Any) -> LlamaWeights:
    """Weights with a small context, unless `native` says otherwise."""
    params = {"n_ctx": 1024, "n_parallel": 4, "n_threads": 1, "warmup": False} | native
    spec = ModelSpec("tiny", path, mmproj=mmproj, native=LoadParams(**params), engine=engine or EngineParams())
    weights = LlamaLoader().load(spec, lambda _fraction: True)
    assert isinstance(weights, LlamaWeights)  # one set of devices
    return weights


def failure(path: Path, *, mmproj: Path | None = None, **native: Any) -> str:
    """Return the reason for which a model cannot be loaded: one line."""
    with pytest.raises(ModelFailed) as caught:
        load(path, mmproj=mmproj, **native).runner()
    assert caught.value.model == "tiny"
    assert "\n" not in caught.value.reason
    return caught.value.reason


@contextmanager
def open_runner(path: Path, **given: Any) -> Iterator[LlamaRunner]:
    """A runner over its own weights, closed at the end. Takes what `load` takes."""
    with closing(load(path, **given)) as weights, closing(weights.runner()) as runner:
        yield runner


@asynccontextmanager
async def engine_on(weights: Weights, params: EngineParams, n_instances: int = 1) -> AsyncIterator[Engine]:
    """An engine on contexts of `weights`; all are closed at the end."""
    engine = Engine([weights.runner() for _ in range(n_instances)], params, asyncio.get_running_loop())
    try:
        yield engine
        engine.check_integrity()
    finally:
        await engine.close()
        weights.close()


def prompt_tokens(vocab: LlamaVocab, text: str = PROMPT) -> list[int]:
    """`text` with the beginning-of-text token."""
    return vocab.tokenize(text, add_special=True, parse_special=False)


def prefill(runner: LlamaRunner, seq: int, tokens: Sequence[int]) -> None:
    """Decode `tokens` into the empty `seq`; the last one's logits are output 0."""
    assert runner.decode([Entry(seq, 0, tokens)])


def generate(
    runner: LlamaRunner, tokens: Sequence[int], n: int, params: SamplingParams = GREEDY, seq: int = 0
) -> list[int]:
    """`n` tokens after `tokens`, which are prefilled into the emptied `seq`."""
    runner.seq_remove(seq, 0)
    prefill(runner, seq, tokens)
    sampler = runner.sampler(params, tokens)
    pos = len(tokens)
    out = [runner.sample(0, sampler)]
    while len(out) < n:
        assert runner.decode([Entry(seq, pos, out[-1:])])
        pos += 1
        out.append(runner.sample(0, sampler))
    sampler.close()
    return out


def raw_logits(runner: LlamaRunner, output: int = 0) -> list[float]:
    """Every token's log probability after the last decode, in the vocabulary's order."""
    n_vocab = runner.vocab.n_tokens
    entry = runner.logprobs(output, 0, n_vocab)
    by_id = {top.id: top.logprob for top in entry.top}
    return [by_id[token] for token in range(n_vocab)]


def raw_probabilities(runner: LlamaRunner) -> Probabilities:
    """Every token's probability after the last decode, before any sampler."""
    probabilities: Probabilities = np.exp(np.array(raw_logits(runner)))
    return probabilities


@pytest.fixture(scope="session")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ggufs")


@pytest.fixture(scope="session")
def tiny_path(gguf_folder: Path) -> Path:
    """A llama-architecture model with separate parameters for everything that matters."""
    return gguf_file(gguf_folder)


@pytest.fixture(scope="session")
def swa_path(gguf_folder: Path) -> Path:
    """A model with a sliding window of 32 tokens."""
    return gguf_file(gguf_folder, TinyModel(arch="gemma3"))


@pytest.fixture(scope="session")
def recurrent_path(gguf_folder: Path) -> Path:
    """A recurrent model (mamba)."""
    return gguf_file(gguf_folder, TinyModel(arch="mamba"))


@pytest.fixture
def runner(tiny_path: Path) -> Iterator[LlamaRunner]:
    """Four slots with separate KV streams of 256 tokens each."""
    with open_runner(tiny_path) as opened:
        yield opened


@pytest.fixture
def ready(runner: LlamaRunner) -> LlamaRunner:
    """A runner with the logits after `PROMPT` in output 0."""
    prefill(runner, 0, prompt_tokens(runner.vocab))
    return runner


@pytest.fixture
def runner_of(tiny_path: Path) -> Callable[..., AbstractContextManager[LlamaRunner]]:
    """``with runner_of(kv_unified=True) as runner``: other load parameters over the same file."""
    return lambda **native: open_runner(tiny_path, **native)


@pytest.fixture(scope="session")
def tiny_vocab(tiny_path: Path) -> Iterator[LlamaVocab]:
    weights = load(tiny_path)
    yield weights.vocab
    weights.close()
