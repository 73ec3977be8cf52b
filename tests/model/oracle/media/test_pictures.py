"""Pictures as llama-server reads them: as many tokens, and the same greedy text, whoever decodes them together."""

import asyncio
import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.params import EngineParams
from server.media.bitmap import Bitmap
from tests import media_files
from tests.model.native_fixtures import F32
from tests.model.oracle.conftest import WAIT_QUIETLY
from tests.model.test_media import Answer, Parts, bench, specification
from tests.support.oracle import oracle
from tests.support.real_server import RealServer

MARKER = "<__media__>"
N_PREDICT = 12


@dataclass(frozen=True, slots=True)
class Png:
    """A picture of random pixels, as a file and as it is decoded."""

    file: bytes
    bitmap: Bitmap


def png(number: int, width: int, height: int) -> Png:
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
    file = media_files.png(width, height, pixels.tobytes())
    return Png(file, Bitmap("image", width, height, pixels.tobytes(), hashlib.sha256(file).hexdigest()))


IMAGE_DECODER = [png(0, 64, 64), png(1, 100, 80), png(2, 33, 150), png(3, 200, 40)]
PROMPTS: list[list[str | Png]] = [
    ["what is this: ", IMAGE_DECODER[0], " and why?"],
    ["first ", IMAGE_DECODER[1], " then ", IMAGE_DECODER[2], " in one go"],
    [IMAGE_DECODER[3], IMAGE_DECODER[3], " twice the same"],
    ["nothing to see here"],
    ["the end is no picture ", IMAGE_DECODER[2], "."],  # llama-server does not survive one that is
    [IMAGE_DECODER[0], " and ", IMAGE_DECODER[1], " and ", IMAGE_DECODER[2], " and ", IMAGE_DECODER[3], " all four"],
    ["what is this: ", IMAGE_DECODER[0], " then?"],
    ["what is this: ", IMAGE_DECODER[1], " then?"],
]
"""As many as there are slots."""


@pytest.fixture(scope="module", params=["gemma3", "qwen2vl"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def theirs(kind: str, folder: Path) -> Iterator[RealServer]:
    spec = specification(folder, kind)
    params: dict[str, Any] = {"mmproj.path": str(spec.mmproj), "warmup": False}
    params |= {"flash_attn_type": 0, "cache_type_k": 0, "cache_type_v": 0}
    environment = {**WAIT_QUIETLY, "LLAMA_MEDIA_MARKER": MARKER}
    with oracle(
        spec.path, n_ctx=8192, n_parallel=len(PROMPTS), n_threads=1, params=params, environment=environment
    ) as server:
        yield server


def asked_there(server: RealServer, prompt: list[str | Png]) -> tuple[int, list[int]]:
    """Prompt tokens, and those of the answer."""
    text = "".join(part if isinstance(part, str) else MARKER for part in prompt)
    data = [base64.b64encode(part.file).decode() for part in prompt if isinstance(part, Png)]
    body: dict[str, Any] = {"prompt": {"prompt_string": text, "multimodal_data": data} if data else text}
    body |= {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}
    body["n_predict"] = N_PREDICT
    reply = server.request("POST", "/completion", body).json()
    return reply["tokens_evaluated"], reply["tokens"]


def parts_of(prompt: list[str | Png]) -> Parts:
    return [part if isinstance(part, str) else part.bitmap for part in prompt]


def test_the_same_tokens_and_the_same_text(kind: str, folder: Path, theirs: RealServer) -> None:
    expected = [asked_there(theirs, prompt) for prompt in PROMPTS]

    async def ask() -> list[list[Answer]]:
        native: dict[str, Any] = {**F32, "n_ctx": 8192, "n_parallel": len(PROMPTS)}
        async with bench(folder, kind, EngineParams(spec_type="none"), **native) as b:
            fields = {"max_tokens": N_PREDICT}
            alone = [await b.ask(parts_of(prompt), cache_prompt=False, **fields) for prompt in PROMPTS]
            together = await asyncio.gather(*(b.ask(parts_of(prompt), **fields) for prompt in PROMPTS))
            cached = [await b.ask(parts_of(prompt), **fields) for prompt in PROMPTS]
            return [alone, list(together), cached]

    for answers in asyncio.run(ask()):
        assert [(answer.n_prompt, answer.tokens) for answer in answers] == expected
