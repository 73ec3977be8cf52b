"""Llamapool and llama-server generate the same tokens with every architecture, memory and weight type.

Also chat, eight simultaneous requests, cancellation, saved slots, full contexts and speculation. Real servers with
generated models; takes minutes, so it is not part of `make test`:

    make kinds
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.native_fixtures import quantize
from tests.support.ggufs import MODELS, TinyModel, gguf_file
from tests.support.oracle import oracle
from tests.support.peer import build as build_llama_server
from tests.support.peer import llama_server
from tests.support.real_server import RealServer, llamapool

GENERATING = {
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
N_SLOTS, N_CTX = 8, 512  # tokens per slot
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "ten")
TEXTS = [f"{word} the quick brown fox jumps over the lazy dog" for word in WORDS]
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-t", "1", "--no-warmup")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


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


def complete_together(server: RealServer) -> list[list[int]]:
    """Return the tokens of the replies to `TEXTS`, requested simultaneously."""
    with ThreadPoolExecutor(N_SLOTS) as clients:
        replies = list(clients.map(lambda text: complete(server, text, cache_prompt=False), TEXTS))
    return [reply["tokens"] for reply in replies]


def is_idle(server: RealServer) -> bool:
    return not any(slot["is_processing"] for slot in server.get("/slots"))


def check_cancel(server: RealServer) -> None:
    """Check that a slot is freed when its client disconnects. With context shifts the reply would never end."""
    with server.open_stream("/completion", {"prompt": TEXTS[0], "n_predict": -1, "ignore_eos": True}) as stream:
        for _ in range(4):
            assert stream.readline()
        assert not is_idle(server)
    while not is_idle(server):
        pass  # pytest's timeout ends this
    assert complete(server, TEXTS[0], n_predict=1)["tokens"]


def check_save_and_restore(server: RealServer) -> None:
    """Check that a slot restored into another one continues with the same tokens."""
    first = complete(server, TEXTS[1], id_slot=0)
    assert server.post("/slots/0?action=save", {"filename": "a.bin"})["n_saved"] > 0
    longer = [*server.post("/tokenize", {"content": TEXTS[1], "add_special": True})["tokens"], *first["tokens"], 300]
    expected = complete(server, longer, id_slot=2, cache_prompt=False)["tokens"]
    assert server.post("/slots/1?action=restore", {"filename": "a.bin"})["n_restored"] > 0
    again = complete(server, longer, id_slot=1)
    assert again["tokens"] == expected
    assert again["timings"]["cache_n"] > 0


SIZES = ("-c", str(N_SLOTS * N_CTX), "-np", str(N_SLOTS))


@pytest.mark.parametrize("kind", GENERATING)
def test_architectures_generate_the_tokens_of_llama_server(kind: str, folder: Path) -> None:
    path = gguf_file(folder, GENERATING[kind])
    params = {"flash_attn_type": 0, "cache_type_k": 0, "cache_type_v": 0}
    with (
        llamapool(path, *SIZES, *EXACT, "--slot-save-path", str(folder), "--context-shift") as ours,
        oracle(path, n_ctx=N_SLOTS * N_CTX, n_parallel=N_SLOTS, n_threads=1, params=params) as theirs,
    ):
        assert chat(ours) == chat(theirs)
        expected = [complete(theirs, text)["tokens"] for text in TEXTS]
        assert [complete(ours, text)["tokens"] for text in TEXTS] == expected
        assert complete_together(ours) == expected
        check_cancel(ours)
        check_save_and_restore(ours)


@pytest.mark.parametrize("kind", GENERATING)
def test_full_context_is_shifted_or_ends_the_reply(kind: str, folder: Path) -> None:
    path, n_predict = gguf_file(folder, GENERATING[kind]), N_CTX + 50
    with llamapool(path, "-c", str(N_CTX), "-np", "1", "--context-shift", *EXACT) as server:
        shifted = complete(server, TEXTS[0], n_predict=n_predict)
    assert (shifted["tokens_predicted"], shifted["truncated"]) == (n_predict, True)
    with llamapool(path, "-c", str(N_CTX), "-np", "1", *EXACT) as server:
        ended = complete(server, TEXTS[0], n_predict=n_predict)
    assert (ended["stop_type"], ended["truncated"]) == ("limit", True)
    assert ended["tokens"] == shifted["tokens"][: len(ended["tokens"])]


@pytest.mark.parametrize("kind", GENERATING)
def test_speculation_changes_no_token(kind: str, folder: Path) -> None:
    path = gguf_file(folder, GENERATING[kind])
    repeated = " ".join(["the quick brown fox"] * 12)
    replies = []
    for spec in ("none", "ngram-simple"):
        with llamapool(path, "-c", str(N_CTX), "-np", "1", "--spec-type", spec, *EXACT) as server:
            replies.append(complete(server, repeated, n_predict=60)["tokens"])
    assert replies[0] == replies[1]


def quantized(folder: Path, name: str) -> Path:
    """Return a file of random weights of this type. MXFP4 is only for experts."""
    source = gguf_file(folder, replace(WIDE, n_expert=4) if name == "MXFP4" else WIDE)
    target = folder / f"{name}.gguf"
    quantize(source, target, FTYPES[name])
    return target


@pytest.mark.parametrize("name", FTYPES)
def test_weight_types_generate_the_tokens_of_llama_server(name: str, folder: Path) -> None:
    """With random weights, many tokens are almost equally probable, and kernels of another build round differently. So
    the reference is a llama-server that uses our libraries. Kernels also round differently for several sequences, so
    only the first tokens of simultaneous replies are compared.
    """
    path = quantized(folder, name)
    sizes = (*SIZES, "--slot-save-path", str(folder))
    with (
        llamapool(path, *sizes, *EXACT, "--spec-type", "none", "--context-shift") as ours,
        llama_server(build_llama_server(), path, *sizes, *EXACT) as theirs,
    ):
        chat(ours)
        expected = [complete(theirs, text, cache_prompt=False)["tokens"] for text in TEXTS]
        for _ in range(2):
            assert [complete(ours, text, cache_prompt=False)["tokens"] for text in TEXTS] == expected
        assert [tokens[0] for tokens in complete_together(ours)] == [tokens[0] for tokens in expected]
        check_cancel(ours)
        check_save_and_restore(ours)


def cosine(one: Any, other: Any) -> float:
    a, b = np.array(one, np.float64).ravel(), np.array(other, np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_encoder_gives_the_embeddings_of_llama_server(folder: Path) -> None:
    """llama-server uses unified KV here. With separate KV, causal models with pooling give other embeddings for
    simultaneous texts than for the same texts alone: cosines are 0.38 or less, in its release and with our libraries.
    """
    path = gguf_file(folder, TinyModel(arch="t5encoder", n_head_kv=4, pooling="mean"))
    shared: dict[str, Any] = {"n_parallel": 4, "params": {"embedding": True, "kv_unified": True}}
    with llamapool(path, "--embedding", *EXACT) as ours, oracle(path, n_ctx=2048, n_threads=1, **shared) as theirs:
        together = [ours.post("/embedding", {"content": TEXTS[:4]}), theirs.post("/embedding", {"content": TEXTS[:4]})]
        alone = [theirs.post("/embedding", {"content": text})[0] for text in TEXTS[:4]]
    for mine, *others in zip(*together, alone, strict=True):
        for other in others:
            assert cosine(mine["embedding"], other["embedding"]) > 0.9999
