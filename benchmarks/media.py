"""Images: the time to first token after an image, and the gaps that it causes in other streams.

The projector has random weights and the size of those of small models: 196 tokens per image, eight layers.
"""

import asyncio
import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from server.bench.client import ClientRecord, Fields, ModelClient
from server.bench.scenarios import TOKENS_PER_WORD, Figures, Setting, first_s, longest_gap_s
from tests.support.ggufs.projector import TinyProjector, projector_file

SIDE = 224
N_TOKENS = 196
"""Tokens of an image."""
SCREEN, N_SCREENS = (1920, 1080), 4
N_CLIENTS = 8
N_STREAMS = 3
ROUNDS = 3
WORDS = ("red", "green", "small", "large", "round", "left", "above", "behind", "two", "many", "no", "one")


def projector_for(folder: Path, n_embd: int) -> Path:
    """Return a projector file for a model with `n_embd` dimensions. Writes it if it does not exist."""
    folder.mkdir(exist_ok=True)
    return projector_file(
        folder, TinyProjector("mlp", n_embd_text=n_embd, n_embd=512, n_layer=8, image_size=SIDE, patch_size=16)
    )


def image(number: int, width: int = SIDE, height: int = SIDE, grain: int = 1) -> str:
    """Return a unique image for `number` as a data URL. Squares of `grain` pixels have one color."""
    squares = np.random.default_rng(number).integers(0, 255, (height // grain, width // grain, 3), dtype=np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in squares.repeat(grain, 0).repeat(grain, 1))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def run_media(session: ModelClient, setting: Setting) -> Figures:
    return asyncio.run(_media(replace(session, chat=True), setting))


async def _media(session: ModelClient, setting: Setting) -> Figures:
    first = setting.seed * 1_000
    await session.stream(_body(session, image(first), "warm up"))
    new: list[ClientRecord] = []
    cached: list[ClientRecord] = []
    second: list[ClientRecord] = []
    slowest_s: list[float] = []
    for number in range(first + 1, first + 1 + ROUNDS):
        url = image(number)
        new.append(await session.stream(_body(session, url, "what is it?", id_slot=0)))
        cached.append(await session.stream(_body(session, url, "and what else?", id_slot=1)))
        second.append(await session.stream(_body(session, url, "what is it?", new[-1].text, "why?", id_slot=0)))
        shared = image(number + ROUNDS)
        bodies = [_body(session, shared, f"what is {WORDS[i]}?") for i in range(N_CLIENTS)]
        records = await session.streams(bodies)
        slowest_s.append(max(map(first_s, records)))
    large = [image(first + 900 + i, *SCREEN, 8) for i in range(N_SCREENS)]
    answer = (await session.stream(_body(session, large, "what are they?", id_slot=2))).text
    later = [
        await session.stream(_body(session, large, "what are they?", answer, word, id_slot=2)) for word in WORDS[:3]
    ]
    return {
        "TTFT of a new image ms": 1e3 * min(map(first_s, new)),
        "TTFT of one cached in another slot ms": 1e3 * min(map(first_s, cached)),
        "TTFT of a second turn ms": 1e3 * min(map(first_s, second)),
        "TTFT of a second turn after 4 screens ms": 1e3 * min(map(first_s, later)),
        "TTFT max of 8 with one image ms": 1e3 * min(slowest_s),
        **await _gaps(session, setting, first + 500),
    }


async def _gaps(session: ModelClient, setting: Setting, number: int) -> Figures:
    """Measure the longest gap of streams during the prefill of a new image, and of a new text of as many tokens.

    They alternate after one of each as a warm-up, since a server may adapt the size of its steps.
    """
    words = setting.words("media")
    texts: list[float] = []
    images: list[float] = []
    for i in range(1 + ROUNDS):
        texts.append(await _gap(session, _body(session, "", words.text(N_TOKENS / TOKENS_PER_WORD))))
        images.append(await _gap(session, _body(session, image(number + i), "what?")))
    text_s, image_s = min(texts[1:]), min(images[1:])
    return {
        "longest gap with a new text ms": 1e3 * text_s,
        "longest gap with a new image ms": 1e3 * image_s,
        "gap with an image to gap with a text": image_s / text_s,
    }


async def _gap(session: ModelClient, body: Fields) -> float:
    running = [session.start(_body(session, "", f"stream {i} tell me", n_predict=400)) for i in range(N_STREAMS)]
    try:
        for stream in running:
            await stream.running.wait()
        record = await session.stream(body)
    finally:
        for stream in running:
            stream.close()
    finished = [await stream.finished() for stream in running]
    return longest_gap_s(finished, record.sent, record.sent + first_s(record))


def _body(
    session: ModelClient,
    urls: str | Sequence[str],
    question: str,
    answer: str = "",
    second_question: str = "",
    *,
    n_predict: int = 8,
    **fields: object,
) -> Fields:
    """Return a chat body that starts with the images at `urls`: none, one or several."""
    content: str | Sequence[dict[str, object]] = question
    if urls:
        several = [urls] if isinstance(urls, str) else urls
        images: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in several]
        content = [*images, {"type": "text", "text": question}]
    messages: list[dict[str, object]] = [{"role": "user", "content": content}]
    if second_question:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": second_question}]
    return {**session.body([""], n_predict), "messages": messages} | fields
