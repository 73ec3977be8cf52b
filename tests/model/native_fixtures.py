"""Fixtures and builders for tests of `server/llama` with tiny models. Files are written once per session."""

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
UNTRUNCATED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
F32: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
"""Load parameters with which results hardly depend on the shape of a batch."""
PROMPT = "the quick brown fox jumps over the lazy dog"

Entry = partial(BatchEntry, n_outputs=1)


def spy(monkeypatch: pytest.MonkeyPatch, name: str, library: Any = C) -> list[tuple[tuple[Any, ...], Any]]:
    """Record the calls of a library function. Returns a list that grows by (arguments, result)."""
    function, calls = getattr(library, name), list[tuple[tuple[Any, ...], Any]]()

    def recorded(*arguments: Any) -> Any:
        result = function(*arguments)
        calls.append((arguments, result))
        return result

    monkeypatch.setattr(library, name, recorded)
    return calls


def write_gguf(
    path: Path,
    tensors: Mapping[str, npt.NDArray[Any]],
    describe: Callable[[GGUFWriter], None] = lambda _: None,
    arch: str = "llama",
) -> Path:
    """Write a GGUF file with `tensors` and the metadata that `describe` adds. Returns `path`."""
    writer = GGUFWriter(path, arch)
    describe(writer)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    finish(writer)
    return path


def quantize(source: Path, target: Path, ftype: int) -> None:
    """Write a copy of a model with weights of another type. `ftype`: enum llama_ftype, 0 for F32."""
    start_backend()
    params = C.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftype, 1, True
    assert C.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0


def load(path: Path, *, mmproj: Path | None = None, engine: EngineParams | None = None, **native: Any) -> LlamaWeights:
    """Load a model, by default with four slots of 256 tokens and without warm-up. `native`: fields of `LoadParams`."""
    params = {"n_ctx": 1024, "n_parallel": 4, "n_threads": 1, "warmup": False} | native
    spec = ModelSpec("tiny", path, mmproj=mmproj, native=LoadParams(**params), engine=engine or EngineParams())
    weights = LlamaLoader().load(spec, lambda _fraction: True)
    assert isinstance(weights, LlamaWeights)  # there is one set of devices
    return weights


def load_failure(path: Path, *, mmproj: Path | None = None, **native: Any) -> str:
    """Load a model that cannot be loaded. Returns the reason, which is one line."""
    with pytest.raises(ModelFailed) as caught:
        load(path, mmproj=mmproj, **native).runner()
    assert caught.value.model == "tiny"
    assert "\n" not in caught.value.reason
    return caught.value.reason


@contextmanager
def open_runner(path: Path, **options: Any) -> Iterator[LlamaRunner]:
    """Load a model and open a runner; close both at the end. `options`: arguments of `load`."""
    with closing(load(path, **options)) as weights, closing(weights.runner()) as runner:
        yield runner


@asynccontextmanager
async def engine_on(weights: Weights, params: EngineParams, n_instances: int = 1) -> AsyncIterator[Engine]:
    """Open an engine with `n_instances` contexts; close it and `weights` at the end."""
    engine = Engine([weights.runner() for _ in range(n_instances)], params, asyncio.get_running_loop())
    try:
        yield engine
        engine.check_integrity()
    finally:
        await engine.close()
        weights.close()


def prompt_tokens(vocab: LlamaVocab, text: str = PROMPT) -> list[int]:
    """Return the tokens of `text` after the BOS token."""
    return vocab.tokenize(text, add_special=True, parse_special=False)


def prefill(runner: LlamaRunner, seq: int, tokens: Sequence[int]) -> None:
    """Decode `tokens` into the empty sequence `seq`. Output 0 has the logits after the last token."""
    assert runner.decode([Entry(seq, 0, tokens)])


def generate(
    runner: LlamaRunner, tokens: Sequence[int], n: int, params: SamplingParams = GREEDY, seq: int = 0
) -> list[int]:
    """Prefill `tokens` into the sequence `seq`, which is emptied first. Returns the next `n` tokens."""
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


def all_logprobs(runner: LlamaRunner, output: int = 0) -> list[float]:
    """Return the log probability of every token after the last decode, before any sampler, by token id."""
    n_vocab = runner.vocab.n_tokens
    entry = runner.logprobs(output, 0, n_vocab)
    by_id = {top.id: top.logprob for top in entry.top}
    return [by_id[token] for token in range(n_vocab)]


def all_probabilities(runner: LlamaRunner) -> npt.NDArray[np.float64]:
    """Return the probability of every token after the last decode, before any sampler, by token id."""
    probabilities: npt.NDArray[np.float64] = np.exp(np.array(all_logprobs(runner)))
    return probabilities


@pytest.fixture(scope="session")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ggufs")


@pytest.fixture(scope="session")
def tiny_path(gguf_folder: Path) -> Path:
    """The file of `PLAIN`, a Llama model."""
    return gguf_file(gguf_folder)


@pytest.fixture(scope="session")
def swa_path(gguf_folder: Path) -> Path:
    """The file of a model with a sliding window of 32 tokens."""
    return gguf_file(gguf_folder, TinyModel(arch="gemma3"))


@pytest.fixture(scope="session")
def recurrent_path(gguf_folder: Path) -> Path:
    """The file of a recurrent model (Mamba)."""
    return gguf_file(gguf_folder, TinyModel(arch="mamba"))


@pytest.fixture
def runner(tiny_path: Path) -> Iterator[LlamaRunner]:
    """A runner with four slots and separate KV of 256 tokens each."""
    with open_runner(tiny_path) as opened:
        yield opened


@pytest.fixture
def prefilled(runner: LlamaRunner) -> LlamaRunner:
    """A runner with the logits after `PROMPT` in output 0."""
    prefill(runner, 0, prompt_tokens(runner.vocab))
    return runner


@pytest.fixture
def tiny_runner(tiny_path: Path) -> Callable[..., AbstractContextManager[LlamaRunner]]:
    """``with tiny_runner(kv_unified=True) as runner``: `open_runner` with the file of `PLAIN`."""
    return lambda **native: open_runner(tiny_path, **native)


@pytest.fixture(scope="session")
def tiny_vocab(tiny_path: Path) -> Iterator[LlamaVocab]:
    weights = load(tiny_path)
    yield weights.vocab
    weights.close()
