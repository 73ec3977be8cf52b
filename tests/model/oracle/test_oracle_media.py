"""Images and audio compared with llama-server: token counts, greedy replies and rendered prompts."""

import asyncio
import base64
import functools
import hashlib
import http.server
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.params import EngineParams
from server.media.bitmap import Bitmap
from tests import media_files
from tests.media_files import AUDIO_FILES, IMAGES, media_file
from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import PASSIVE_WAIT, start_pair
from tests.model.test_media import MODELS, Parts, open_model
from tests.support.fake_hub import serving
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.oracle import oracle
from tests.support.real_server import RealServer

MARKER = "<__media__>"
N_PREDICT = 12


@dataclass(frozen=True, slots=True)
class Png:
    """An image with random pixels: as a file, and decoded."""

    file: bytes
    bitmap: Bitmap


def png(seed: int, width: int, height: int) -> Png:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    file = media_files.png(width, height, pixels.tobytes())
    return Png(file, Bitmap("image", width, height, pixels.tobytes(), hashlib.sha256(file).hexdigest()))


RANDOM = [png(0, 64, 64), png(1, 100, 80), png(2, 33, 150), png(3, 200, 40)]
PROMPTS: list[list[str | Png]] = [
    ["what is this: ", RANDOM[0], " and why?"],
    ["first ", RANDOM[1], " then ", RANDOM[2], " in one go"],
    [RANDOM[3], RANDOM[3], " twice the same"],
    ["nothing to see here"],
    ["the end is no picture ", RANDOM[2], "."],  # llama-server crashes if a prompt ends with an image
    [RANDOM[0], " and ", RANDOM[1], " and ", RANDOM[2], " and ", RANDOM[3], " all four"],
    ["what is this: ", RANDOM[0], " then?"],
    ["what is this: ", RANDOM[1], " then?"],
]
"""One for each slot."""


def llama_server(kind: str, folder: Path) -> RealServer:
    """Start llama-server with a model of `tests.model.test_media.MODELS`."""
    model, projector = MODELS[kind]
    params: dict[str, Any] = {"mmproj.path": str(projector_file(folder, projector)), "warmup": False}
    params |= {"flash_attn_type": 0, "cache_type_k": 0, "cache_type_v": 0}
    return oracle(
        gguf_file(folder, model),
        n_ctx=8192,
        n_parallel=len(PROMPTS),
        n_threads=1,
        params=params,
        environment={**PASSIVE_WAIT, "LLAMA_MEDIA_MARKER": MARKER},
    )


def complete(server: RealServer, prompt: list[str | Png]) -> tuple[int, list[int]]:
    """Return the number of prompt tokens, and the tokens of the reply."""
    text = "".join(part if isinstance(part, str) else MARKER for part in prompt)
    data = [base64.b64encode(part.file).decode() for part in prompt if isinstance(part, Png)]
    body: dict[str, Any] = {"prompt": {"prompt_string": text, "multimodal_data": data} if data else text}
    body |= {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}
    body["n_predict"] = N_PREDICT
    reply = server.request("POST", "/completion", body).json()
    return reply["tokens_evaluated"], reply["tokens"]


def parts_of(prompt: list[str | Png]) -> Parts:
    return [part if isinstance(part, str) else part.bitmap for part in prompt]


@pytest.mark.parametrize("kind", ["gemma3", "qwen2vl"])
async def test_tokens_are_those_of_llama_server_alone_concurrent_and_cached(kind: str, gguf_folder: Path) -> None:
    with llama_server(kind, gguf_folder) as server:
        expected = [complete(server, prompt) for prompt in PROMPTS]
    prompts = [parts_of(prompt) for prompt in PROMPTS]
    params, fields = EngineParams(spec_type="none"), {"max_tokens": N_PREDICT}
    async with open_model(gguf_folder, kind, params, n_ctx=8192, n_parallel=len(PROMPTS)) as model:
        alone = [await model.generate(parts, cache_prompt=False, **fields) for parts in prompts]
        concurrent = await asyncio.gather(*(model.generate(parts, **fields) for parts in prompts))
        cached = [await model.generate(parts, **fields) for parts in prompts]
    for replies in (alone, concurrent, cached):
        assert [(reply.finished[0].n_prompt, reply.tokens) for reply in replies] == expected


FILES = Path(media_files.__file__).parent
PNG, JPEG = (base64.b64encode(media_file(name)).decode() for name in ("tiny.png", "tiny.jpg"))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
CHAT, COUNT = "/v1/chat/completions", "/v1/chat/completions/input_tokens"


class QuietFileHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """URL of a loopback server for the files in `FILES`."""
    with serving(functools.partial(QuietFileHandler, directory=str(FILES))) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def start_with_projector(folder: Path, projector: TinyProjector) -> Iterator[Pair]:
    """Start both servers with a projector. Both may read files in `FILES` and fetch URLs of this machine."""
    model, path = gguf_file(folder, PLAIN), str(projector_file(folder, projector))
    params: dict[str, str | int] = {"mmproj.path": path, "media_path": f"{FILES}/", "slot_save_path": f"{folder}/"}
    params |= {"warmup": False}
    flags = ("--mmproj", path, "--media-path", FILES, "--media-fetch", "127.0.0.1", "--slot-save-path", folder)
    environment = {"LLAMA_MEDIA_MARKER": MARKER}
    with ExitStack() as stack:
        yield start_pair(stack, model, n_ctx=4096, n_parallel=2, flags=flags, params=params, environment=environment)


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_with_projector(tmp_path_factory.mktemp("gguf"), TinyProjector("mlp")) as pair:
        yield pair


def chat(*parts: object, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **GREEDY, **more}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def check_chat(pair: Pair, body: dict[str, Any]) -> None:
    """Check that replies, token counts and rendered prompts are equal."""
    ours, theirs = pair.post(CHAT, body)
    content = [reply["choices"][0]["message"]["content"] for reply in (ours, theirs)]
    assert content[0].rstrip("\ufffd") == content[1].rstrip("\ufffd")  # for a character that max_tokens truncated
    for count in ("prompt_tokens", "completion_tokens"):
        assert ours["usage"][count] == theirs["usage"][count]
    ours, theirs = pair.post(COUNT, body)
    assert ours["input_tokens"] == theirs["input_tokens"]
    ours, theirs = pair.post("/apply-template", body)
    assert ours["prompt"] == theirs["prompt"]


@pytest.mark.parametrize("source", [*IMAGES, "base64", "file://tiny.png", "file:///tiny.png", "http"])
def test_images_of_every_type_and_source(vision: Pair, base_url: str, source: str) -> None:
    url = {"http": f"{base_url}/tiny.png", "base64": PNG}.get(source, source)
    if source in IMAGES:
        url = f"data:image/{source[-3:]};base64,{base64.b64encode(media_file(source)).decode()}"
    check_chat(vision, chat(text("What is this?"), image(url), text("And why?")))


def test_a_conversation_with_images_in_several_turns(vision: Pair) -> None:
    messages = [
        {"role": "system", "content": "You see."},
        {"role": "user", "content": [text("What?"), image(PNG)]},
        {"role": "assistant", "content": "A thing."},
        {"role": "user", "content": [image(JPEG), text("And this?")]},
    ]
    check_chat(vision, {"messages": messages, **GREEDY})


def test_saved_slots_include_images(vision: Pair) -> None:
    """Each server restores its own file, because their state formats have different versions."""
    prompt: dict[str, Any] = {"prompt_string": f"Once {MARKER} there was {MARKER} and", "multimodal_data": [PNG, JPEG]}
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": True, "id_slot": 0, "cache_prompt": True}
    vision.post("/completion", body)
    results = []
    for server in (vision.ours, vision.theirs):
        file = {"filename": f"{server.port}.bin"}
        n_saved = server.post("/slots/0?action=save", file)["n_saved"]
        n_erased = server.post("/slots/0?action=erase", {})["n_erased"]
        n_restored = server.post("/slots/0?action=restore", file)["n_restored"]
        longer = {**body, "prompt": {**prompt, "prompt_string": prompt["prompt_string"] + " then?"}}
        reply = server.post("/completion", longer)
        results.append((n_saved, n_erased, n_restored, reply["timings"]["cache_n"], reply["content"]))
    assert results[0] == results[1]
    assert results[0][3] > 2 * TinyProjector("mlp").n_tokens


WAV, MP3, FLAC = (base64.b64encode(media_file(f"tiny.{kind}")).decode() for kind in ("wav", "mp3", "flac"))
BOUNDARY = "one-after-the-other"
MAX_AUDIO_TOKENS = 5  # the logits of the two best tokens differ by 0.06 at least: more than rounding of the samples


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_with_projector(tmp_path_factory.mktemp("gguf"), TinyProjector("qwen3a")) as pair:
        yield pair


def input_audio(data: str, audio_format: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format}}


def multipart_form(file: bytes, fields: Mapping[str, str]) -> bytes:
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; "
    lines = [
        b"%b%b\r\n\r\n%b\r\n" % (head.encode(), name.encode(), value)
        for name, value in [*parts, ('name="file"; filename="a.wav"', file)]
    ]
    return b"%b--%b--\r\n" % (b"".join(lines), BOUNDARY.encode())


def input_audio_file(name: str) -> dict[str, Any]:
    audio_format = "mp3" if name.endswith(".mp3") else "wav"  # llama-server has no others, and detects the real one
    return input_audio(base64.b64encode(media_file(name)).decode(), audio_format)


@pytest.mark.parametrize(
    "parts",
    [
        *((text("What is said?"), input_audio_file(name), text("And why?")) for name in AUDIO_FILES),
        (input_audio(WAV), text("first")),
        (input_audio(WAV), input_audio(MP3, "mp3"), text("both")),
        (text("the same twice"), input_audio(WAV), input_audio(WAV), text("?")),
        (text("one"), input_audio(FLAC), text("two"), input_audio(WAV), text("three")),
    ],
)
def test_audio_of_every_type_in_order(audio: Pair, parts: tuple[dict[str, Any], ...]) -> None:
    check_chat(audio, chat(*parts, max_tokens=MAX_AUDIO_TOKENS))


@pytest.mark.parametrize("fields", [{}, {"language": "en"}])
def test_transcriptions_have_the_same_text_and_usage(audio: Pair, fields: dict[str, str]) -> None:
    fields = {"model": "m", "temperature": "0", "max_tokens": str(MAX_AUDIO_TOKENS), **fields}
    body = multipart_form(media_file("tiny.wav"), fields)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    replies = [
        server.request("POST", "/v1/audio/transcriptions", body, headers=headers)
        for server in (audio.ours, audio.theirs)
    ]
    assert [reply.status for reply in replies] == [200, 200]
    ours, theirs = (reply.json() for reply in replies)
    assert ours["text"].rstrip("\ufffd") == theirs["text"].rstrip("\ufffd")
    assert ours["usage"]["input_tokens"] == theirs["usage"]["input_tokens"]
