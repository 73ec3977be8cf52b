"""Requests with media: encoded once, waited for by nobody else, whole in every cache, and gone with who left."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from server.engine.media import MediaSpan, media_tokens
from server.engine.request import PromptLogprobs, Request, TokenLogprob
from server.errors import ContextExceeded, InvalidRequest
from tests.support.fakes import FakeChunk, FakeEncoder, FakeRunner, FakeVocab
from tests.support.waiting import wait_until
from tests.unit.engine.builders import GREEDY, engine_over, run

TEXT = " that is longer than the outputs of a step"
Part = str | tuple[FakeChunk, int, int | None]
"""Text, or a medium with its tokens, and positions where these are not as many."""


def seen(parts: Sequence[Part], **options: object) -> Request:
    tokens: list[int] = [FakeVocab.bos]
    spans: list[MediaSpan] = []
    names: list[str] = []
    for part in parts:
        if isinstance(part, str):
            tokens += FakeVocab().tokenize(part, add_special=False, parse_special=False)
            continue
        chunk, n_tokens, n_pos = part
        nth = names.count(chunk.name)
        names.append(chunk.name)
        linear = n_pos is None
        span = MediaSpan(len(tokens), n_tokens, n_pos or n_tokens, linear, chunk.name, nth, b"", chunk)
        spans.append(span)
        tokens += media_tokens(chunk.name, nth, n_tokens)
    fields = {"max_tokens": 8, "sampling": GREEDY} | options
    return Request(id="seen", prompt=tokens, media=tuple(spans), **fields)  # type: ignore[arg-type]


def picture(
    name: str, n_tokens: int = 20, n_pos: int | None = None, *, causal: bool = True, slow: bool = False
) -> Part:
    return FakeChunk(name, causal, slow), n_tokens, n_pos


async def test_streams_go_on_while_a_picture_is_encoded() -> None:
    encoder = FakeEncoder()
    async with engine_over(FakeRunner(encoder=encoder), gather_ms=0.0) as engine:
        slow = asyncio.ensure_future(run(engine, seen(["look: ", picture("a", slow=True), " well?"])))
        await asyncio.to_thread(encoder.begun.wait, 100)
        for number in range(3):  # these come and end meanwhile
            assert len((await run(engine, seen([f"text {number}"], max_tokens=20)))[0].text) > 0
        assert not slow.done()
        encoder.gate.set()
        (reply,) = await slow
        assert reply.error is None


async def test_who_leaves_while_waiting_for_a_picture_frees_the_slot_and_is_not_encoded() -> None:
    encoder = FakeEncoder(most=1)
    async with engine_over(FakeRunner(encoder=encoder, n_seq=2), gather_ms=0.0) as engine:
        stays = asyncio.ensure_future(run(engine, seen(["look: ", picture("a", slow=True)])))
        await asyncio.to_thread(encoder.begun.wait, 100)
        gone = engine.submit(seen(["look: ", picture("b")]), lambda _events: None)
        engine.cancel(gone)
        assert (await run(engine, seen(["text"])))[0].error is None  # in the slot that was left
        encoder.gate.set()
        assert (await stays)[0].error is None
        assert (await run(engine, seen(["see ", picture("c")])))[0].error is None
        assert ["b"] not in encoder.batches


class Pixels(FakeChunk):
    """May be referred to weakly."""


async def test_a_slot_keeps_the_pixels_of_no_request_that_has_ended() -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder())) as engine:
        chunk = Pixels("a")
        pixels = weakref.ref(chunk)
        await run(engine, seen(["look: ", (chunk, 20, None)], n=2))
        del chunk
        await asyncio.to_thread(wait_until, lambda: gc.collect() >= 0 and pixels() is None, "no pixels are left")


async def test_of_a_prompt_with_media_the_texts_tokens_are_scored() -> None:
    scored = {"prompt_logprobs": True, "want_logprobs": True, "n_probs": 1, "max_tokens": 1}
    parts = [f"text{TEXT}", picture("a"), "and", picture("b", causal=False), picture("a", 20, 5), TEXT, picture("c")]
    found: list[list[TokenLogprob | None]] = []
    for n_more_outputs in (1, 7, 1000):
        async with engine_over(FakeRunner(n_more_outputs=n_more_outputs, encoder=FakeEncoder())) as engine:
            await run(engine, seen(parts))
            (reply,) = await run(engine, seen(parts, **scored))
            (other,) = await run(engine, seen(["other", *parts[1:]], **scored))
        assert reply.error is None
        found.append([t for event in reply.events if isinstance(event, PromptLogprobs) for t in event.tokens])
        assert len([t for event in other.events if isinstance(event, PromptLogprobs) for t in event.tokens if t]) > 0
    assert found[0] == found[1] == found[2]
    assert [one and one.id for one in found[0]] == [t if t >= 0 else None for t in seen(parts).prompt[1:]]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (seen(["a", picture("a", 100, causal=False)]), InvalidRequest),  # more than a micro-batch of 64
        (seen(["a", picture("a", 250), "b" * 20]), ContextExceeded),
        (Request("x", [1, -5], media=()), InvalidRequest),
        (Request("x", [1, -5], media=(MediaSpan(0, 1, 1, True, "a", 0, b"", FakeChunk("a")),) * 2), InvalidRequest),
    ],
)
async def test_what_cant_be_decoded_is_refused(request_: Request, error: type[Exception]) -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder())) as engine:
        with pytest.raises(error):
            engine.submit(request_, lambda _events: None)
