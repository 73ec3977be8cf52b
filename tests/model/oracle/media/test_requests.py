"""Requests with images and audio, to both servers with one model and projector: the same counts, text, prompts."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.media_files import IMAGE_DECODER, SOUNDS, media_file
from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import start_pair
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.projector import TinyProjector, projector_file

FILES = Path(__file__).parents[3] / "media_files"
MARKER = "<__media__>"
PNG, JPEG = (base64.b64encode(media_file(name)).decode() for name in ("tiny.png", "tiny.jpg"))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
CHAT, COUNT = "/v1/chat/completions", "/v1/chat/completions/input_tokens"


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Where the pictures are, on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(FILES)))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


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


@pytest.mark.parametrize("name", IMAGE_DECODER)
def test_pictures_of_every_type(seeing: Pair, name: str) -> None:
    kind = name.rpartition(".")[2]
    url = f"data:image/{kind};base64,{base64.b64encode(media_file(name)).decode()}"
    check_chat(seeing, chat(text("What is this?"), image(url), text("And why?")))


@pytest.mark.parametrize("where", ["data:image/png;base64,{}", "{}", "file://tiny.png", "file:///tiny.png", "site"])
def test_pictures_from_everywhere(seeing: Pair, site: str, where: str) -> None:
    url = f"{site}/tiny.png" if where == "site" else where.format(PNG)
    check_chat(seeing, chat(text("Look at this, please:"), image(url)))


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


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_of_every_type(hearing: Pair, name: str) -> None:
    data = base64.b64encode(media_file(name)).decode()
    form = "mp3" if name.endswith(".mp3") else "wav"  # llama-server knows no other word, and looks at the content
    check_chat(hearing, chat(text("What is said?"), sound(data, form), text("And why?"), **FEW))


@pytest.mark.parametrize(
    "parts",
    [
        (sound(WAV), text("first")),
        (sound(WAV), sound(MP3, "mp3"), text("both")),
        (text("the same twice"), sound(WAV), sound(WAV), text("?")),
        (text("one"), sound(FLAC), text("two"), sound(WAV), text("three")),
    ],
)
def test_several_sounds_stand_in_order(hearing: Pair, parts: tuple[dict[str, Any], ...]) -> None:
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
