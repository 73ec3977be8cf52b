"""What every kind of model must do, on every kind of memory and weight type: load, chat, eight at once, cancel, save
and restore, a context that is full, and the very tokens of llama-server. Some minutes, so not a part of `make test`:

    make kinds
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.native_fixtures import quantize
from tests.support.ggufs import MODELS, TinyModel, gguf_file
from tests.support.oracle import oracle
from tests.support.peer import build as peer
from tests.support.peer import llama_server
from tests.support.real_server import RealServer, llamapool

WRITERS = {
    "dense": MODELS["plain"],
    "dense-qwen3": TinyModel(arch="qwen3"),
    "experts": MODELS["experts"],
    "sliding-window": MODELS["sliding-window"],
    "recurrent": MODELS["recurrent"],
    "hybrid": MODELS["hybrid"],
}
WIDE = TinyModel(n_embd=256, n_vocab=512)
FTYPES = {  # enum llama_ftype
    **{"Q4_0": 2, "Q8_0": 7, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32, "MXFP4": 38}
}
N_SLOTS, N_CTX = 8, 512  # of each
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "ten")
TEXTS = [f"{word} the quick brown fox jumps over the lazy dog" for word in WORDS]
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-t", "1", "--no-warmup")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@contextlib.contextmanager
def both(path: Path, saved: Path, *flags: str, **params: Any) -> Iterator[tuple[RealServer, RealServer]]:
    """Ours and llama-server, with the same context, computing alike."""
    sizes = ("-c", str(N_SLOTS * N_CTX), "-np", str(N_SLOTS), "--slot-save-path", str(saved))
    same = {"flash_attn_type": 0, "cache_type_k": 0, "cache_type_v": 0, **params}
    with (
        llamapool(path, *sizes, *EXACT, "--context-shift", *flags) as ours,
        oracle(path, n_ctx=N_SLOTS * N_CTX, n_parallel=N_SLOTS, n_threads=1, params=same) as theirs,
    ):
        yield ours, theirs


def complete(server: RealServer, text: str | list[int], **more: Any) -> dict[str, Any]:
    body = {"prompt": text, "n_predict": 12, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    reply: dict[str, Any] = server.post("/completion", {**body, **more})
    return reply


def chat(server: RealServer) -> str:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXTS[0]}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    reply = server.post("/v1/chat/completions", body)
    assert reply["usage"]["completion_tokens"] == 12
    return str(reply["choices"][0]["message"]["content"]).rstrip("\ufffd")  # half a character: llama-server drops it


def is_idle(server: RealServer) -> bool:
    return not any(slot["is_processing"] for slot in server.get("/slots"))


def check_cancel(server: RealServer) -> None:
    """The slot of a client that leaves is free. By itself the reply would never end: what is full is shifted."""
    with server.open_stream("/completion", {"prompt": TEXTS[0], "n_predict": -1, "ignore_eos": True}) as stream:
        for _ in range(4):
            assert stream.readline()
        assert not is_idle(server)
    while not is_idle(server):
        pass  # the test's own limit of time ends it
    assert complete(server, TEXTS[0], n_predict=1)["tokens"]


def check_save_and_restore(server: RealServer) -> None:
    """A saved slot goes on in another one as it would have in its own."""
    first = complete(server, TEXTS[1], id_slot=0)
    assert server.post("/slots/0?action=save", {"filename": "a.bin"})["n_saved"] > 0
    longer = [*server.post("/tokenize", {"content": TEXTS[1], "add_special": True})["tokens"], *first["tokens"], 300]
    expected = complete(server, longer, id_slot=2, cache_prompt=False)["tokens"]
    assert server.post("/slots/1?action=restore", {"filename": "a.bin"})["n_restored"] > 0
    again = complete(server, longer, id_slot=1)
    assert again["tokens"] == expected
    assert again["timings"]["cache_n"] > 0


@pytest.mark.parametrize("kind", WRITERS)
def test_models_of_every_memory(kind: str, folder: Path) -> None:
    path = gguf_file(folder, WRITERS[kind])
    with both(path, folder) as (ours, theirs):
        assert chat(ours) == chat(theirs)
        expected = [complete(theirs, text)["tokens"] for text in TEXTS]
        assert [complete(ours, text)["tokens"] for text in TEXTS] == expected
        with ThreadPoolExecutor(N_SLOTS) as clients:
            together = list(clients.map(lambda text: complete(ours, text, cache_prompt=False), TEXTS))
        assert [reply["tokens"] for reply in together] == expected
        check_cancel(ours)
        check_save_and_restore(ours)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_context_is_shifted_or_ends_the_reply(kind: str, folder: Path) -> None:
    path, n_predict = gguf_file(folder, WRITERS[kind]), N_CTX + 50
    with llamapool(path, "-c", str(N_CTX), "-np", "1", "--context-shift", *EXACT) as server:
        shifted = complete(server, TEXTS[0], n_predict=n_predict)
    assert (shifted["tokens_predicted"], shifted["truncated"]) == (n_predict, True)
    with llamapool(path, "-c", str(N_CTX), "-np", "1", *EXACT) as server:
        ended = complete(server, TEXTS[0], n_predict=n_predict)
    assert (ended["stop_type"], ended["truncated"]) == ("limit", True)
    assert ended["tokens"] == shifted["tokens"][: len(ended["tokens"])]


@pytest.mark.parametrize("kind", WRITERS)
def test_guesses_change_no_token(kind: str, folder: Path) -> None:
    path = gguf_file(folder, WRITERS[kind])
    repeated = " ".join(["the quick brown fox"] * 12)
    replies = []
    for spec in ("none", "ngram-simple"):
        with llamapool(path, "-c", str(N_CTX), "-np", "1", "--spec-type", spec, *EXACT) as server:
            replies.append(complete(server, repeated, n_predict=60)["tokens"])
    assert replies[0] == replies[1]


def quantized(folder: Path, name: str) -> Path:
    """A file of random weights of this type. MXFP4 is for experts."""
    source = gguf_file(folder, replace(WIDE, n_expert=4) if name == "MXFP4" else WIDE)
    target = folder / f"{name}.gguf"
    quantize(source, target, FTYPES[name])
    return target


@pytest.mark.parametrize("name", FTYPES)
def test_weights_of_every_type(name: str, folder: Path) -> None:
    """Kernels round differently in another build, and the weights are random, so that most tokens are almost as
    probable as another: the oracle is llama-server on our own libraries. Kernels round differently for several
    sequences at once, too, so of those the first tokens are compared."""
    path = quantized(folder, name)
    sizes = ("-c", str(N_SLOTS * N_CTX), "-np", str(N_SLOTS), "--slot-save-path", str(folder))
    with (
        llamapool(path, *sizes, *EXACT, "--spec-type", "none", "--context-shift") as ours,
        llama_server(peer(), path, *sizes, *EXACT) as theirs,
    ):
        chat(ours)
        whole = [complete(theirs, text, cache_prompt=False)["tokens"] for text in TEXTS]
        expected = [tokens[0] for tokens in whole]
        assert [complete(ours, text, cache_prompt=False)["tokens"] for text in TEXTS] == whole
        assert [complete(ours, text, cache_prompt=False)["tokens"] for text in TEXTS] == whole
        with ThreadPoolExecutor(N_SLOTS) as clients:
            together = list(clients.map(lambda text: complete(ours, text, cache_prompt=False), TEXTS))
        assert [reply["tokens"][0] for reply in together] == expected
        check_cancel(ours)
        check_save_and_restore(ours)


def cosine(one: Any, other: Any) -> float:
    a, b = np.array(one, np.float64).ravel(), np.array(other, np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_vectors_of_an_encoder(folder: Path) -> None:
    """llama-server's slots share a KV cache here: with one for each it gives other vectors for texts that come together
    than for each of them alone (cosines of 0.38 and less, for causal models with a pooling, in its release and on our
    own libraries alike)."""
    path = gguf_file(folder, TinyModel(arch="t5encoder", n_head_kv=4, pooling="mean"))
    shared: dict[str, Any] = {"n_parallel": 4, "params": {"embedding": True, "kv_unified": True}}
    with llamapool(path, "--embedding", *EXACT) as ours, oracle(path, n_ctx=2048, n_threads=1, **shared) as theirs:
        together = [ours.post("/embedding", {"content": TEXTS[:4]}), theirs.post("/embedding", {"content": TEXTS[:4]})]
        alone = [theirs.post("/embedding", {"content": text})[0] for text in TEXTS[:4]]
    for mine, *others in zip(*together, alone, strict=True):
        for other in others:
            assert cosine(mine["embedding"], other["embedding"]) > 0.9999
