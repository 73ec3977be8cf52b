"""Requests with sounds, to both servers with one model and projector: the same counts, text, transcriptions, errors."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.media_files import SOUNDS, media_file
from tests.model.oracle.comparison import Pair
from tests.model.oracle.media.test_requests import (
    chat,
    check_chat,
    text,
    with_projector,
)
from tests.support.ggufs.projector import TinyProjector

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
