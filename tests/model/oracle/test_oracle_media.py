"""Images and audio as llama-server reads them: the same counts, greedy texts and prompts, alone and in batches."""

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
from tests.media_files import IMAGE_DECODER, SOUNDS, media_file
from tests.model.native_fixtures import F32
from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import WAIT_QUIETLY, start_pair
from tests.model.test_media import Parts, bench, specification
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.oracle import oracle
from tests.support.real_server import RealServer
from tests.support.stand_in_hub import serving
from tests.unit.engine.builders import Reply

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


RANDOM = [png(0, 64, 64), png(1, 100, 80), png(2, 33, 150), png(3, 200, 40)]
PROMPTS: list[list[str | Png]] = [
    ["what is this: ", RANDOM[0], " and why?"],
    ["first ", RANDOM[1], " then ", RANDOM[2], " in one go"],
    [RANDOM[3], RANDOM[3], " twice the same"],
    ["nothing to see here"],
    ["the end is no picture ", RANDOM[2], "."],  # llama-server does not survive one that is
    [RANDOM[0], " and ", RANDOM[1], " and ", RANDOM[2], " and ", RANDOM[3], " all four"],
    ["what is this: ", RANDOM[0], " then?"],
    ["what is this: ", RANDOM[1], " then?"],
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

    async def ask() -> list[list[Reply]]:
        native: dict[str, Any] = {**F32, "n_ctx": 8192, "n_parallel": len(PROMPTS)}
        async with bench(folder, kind, EngineParams(spec_type="none"), **native) as b:
            fields = {"max_tokens": N_PREDICT}
            alone = [await b.ask(parts_of(prompt), cache_prompt=False, **fields) for prompt in PROMPTS]
            together = await asyncio.gather(*(b.ask(parts_of(prompt), **fields) for prompt in PROMPTS))
            cached = [await b.ask(parts_of(prompt), **fields) for prompt in PROMPTS]
            return [alone, list(together), cached]

    for answers in asyncio.run(ask()):
        assert [(answer.finished[0].n_prompt, answer.tokens) for answer in answers] == expected


FILES = Path(media_files.__file__).parent
PNG, JPEG = (base64.b64encode(media_file(name)).decode() for name in ("tiny.png", "tiny.jpg"))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
CHAT, COUNT = "/v1/chat/completions", "/v1/chat/completions/input_tokens"


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Where the pictures are, on this machine."""
    with serving(functools.partial(_Files, directory=str(FILES))) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def with_projector(folder: Path, projector: TinyProjector) -> Iterator[Pair]:
    """Both servers with it, on one model; both read files and, ours with leave, addresses of this machine."""
    model, path = gguf_file(folder, PLAIN), str(projector_file(folder, projector))
    params: dict[str, str | int] = {"mmproj.path": path, "media_path": f"{FILES}/", "slot_save_path": f"{folder}/"}
    params |= {"warmup": False}
    flags = ("--mmproj", path, "--media-path", FILES, "--media-fetch", "127.0.0.1", "--slot-save-path", folder)
    environment = {"LLAMA_MEDIA_MARKER": MARKER}
    with ExitStack() as stack:
        yield start_pair(stack, model, n_ctx=4096, n_parallel=2, flags=flags, params=params, environment=environment)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with with_projector(tmp_path_factory.mktemp("gguf"), TinyProjector("mlp")) as pair:
        yield pair


def chat(*parts: object, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **GREEDY, **more}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def check_chat(pair: Pair, body: dict[str, Any]) -> None:
    ours, theirs = pair.post(CHAT, body)
    said = [reply["choices"][0]["message"]["content"] for reply in (ours, theirs)]
    assert said[0].rstrip("\ufffd") == said[1].rstrip("\ufffd")  # of a character that the limit has cut
    for count in ("prompt_tokens", "completion_tokens"):
        assert ours["usage"][count] == theirs["usage"][count]
    ours, theirs = pair.post(COUNT, body)
    assert ours["input_tokens"] == theirs["input_tokens"]
    ours, theirs = pair.post("/apply-template", body)
    assert ours["prompt"] == theirs["prompt"]


@pytest.mark.parametrize("where", [*IMAGE_DECODER, "{}", "file://tiny.png", "file:///tiny.png", "site"])
def test_pictures_of_every_type_from_everywhere(seeing: Pair, site: str, where: str) -> None:
    url = f"{site}/tiny.png" if where == "site" else where.format(PNG)
    if where in IMAGE_DECODER:
        url = f"data:image/{where[-3:]};base64,{base64.b64encode(media_file(where)).decode()}"
    check_chat(seeing, chat(text("What is this?"), image(url), text("And why?")))


def test_a_conversation_with_pictures_in_several_turns(seeing: Pair) -> None:
    messages = [
        {"role": "system", "content": "You see."},
        {"role": "user", "content": [text("What?"), image(PNG)]},
        {"role": "assistant", "content": "A thing."},
        {"role": "user", "content": [image(JPEG), text("And this?")]},
    ]
    check_chat(seeing, {"messages": messages, **GREEDY})


def test_saved_slots_have_their_pictures(seeing: Pair) -> None:
    """Each its own: the wheel's llama-server has another version of the file, which is refused both ways."""
    given: dict[str, Any] = {"prompt_string": f"Once {MARKER} there was {MARKER} and", "multimodal_data": [PNG, JPEG]}
    body = {"prompt": given, "n_predict": 4, "temperature": 0, "ignore_eos": True, "id_slot": 0, "cache_prompt": True}
    seeing.post("/completion", body)
    found = []
    for server in (seeing.ours, seeing.theirs):
        file = {"filename": f"{server.port}.bin"}
        n_saved = server.post("/slots/0?action=save", file)["n_saved"]
        n_erased = server.post("/slots/0?action=erase", {})["n_erased"]
        n_restored = server.post("/slots/0?action=restore", file)["n_restored"]
        more = {**body, "prompt": {**given, "prompt_string": given["prompt_string"] + " then?"}}
        reply = server.post("/completion", more)
        found.append((n_saved, n_erased, n_restored, reply["timings"]["cache_n"], reply["content"]))
    assert found[0] == found[1]
    assert found[0][3] > 2 * TinyProjector("mlp").n_tokens


WAV, MP3, FLAC = (base64.b64encode(media_file(f"tiny.{kind}")).decode() for kind in ("wav", "mp3", "flac"))
BOUNDARY = "one-after-the-other"
FEW = {"max_tokens": 5}
"""Samples differ by rounding: so many tokens in which the two best are far enough apart (0.06) not to notice."""


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with with_projector(tmp_path_factory.mktemp("gguf"), TinyProjector("qwen3a")) as pair:
        yield pair


def sound(data: str, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def form(file: bytes, fields: Mapping[str, str]) -> bytes:
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; "
    lines = [
        b"%b%b\r\n\r\n%b\r\n" % (head.encode(), name.encode(), value)
        for name, value in [*parts, ('name="file"; filename="a.wav"', file)]
    ]
    return b"%b--%b--\r\n" % (b"".join(lines), BOUNDARY.encode())


def sound_of(name: str) -> dict[str, Any]:
    form = "mp3" if name.endswith(".mp3") else "wav"  # llama-server knows no other word, and looks at the content
    return sound(base64.b64encode(media_file(name)).decode(), form)


@pytest.mark.parametrize(
    "parts",
    [
        *((text("What is said?"), sound_of(name), text("And why?")) for name in SOUNDS),
        (sound(WAV), text("first")),
        (sound(WAV), sound(MP3, "mp3"), text("both")),
        (text("the same twice"), sound(WAV), sound(WAV), text("?")),
        (text("one"), sound(FLAC), text("two"), sound(WAV), text("three")),
    ],
)
def test_sounds_of_every_type_stand_in_order(hearing: Pair, parts: tuple[dict[str, Any], ...]) -> None:
    check_chat(hearing, chat(*parts, **FEW))


@pytest.mark.parametrize("fields", [{}, {"language": "en"}])
def test_transcriptions(hearing: Pair, fields: dict[str, str]) -> None:
    body = form(media_file("tiny.wav"), {"model": "m", "temperature": "0", "max_tokens": "5"} | fields)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    replies = [
        server.request("POST", "/v1/audio/transcriptions", body, headers=headers)
        for server in (hearing.ours, hearing.theirs)
    ]
    assert [reply.status for reply in replies] == [200, 200]
    ours, theirs = (reply.json() for reply in replies)
    assert ours["text"].rstrip("\ufffd") == theirs["text"].rstrip("\ufffd")
    assert ours["usage"]["input_tokens"] == theirs["usage"]["input_tokens"]
