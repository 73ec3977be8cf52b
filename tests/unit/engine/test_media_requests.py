"""Requests with media, with a fake encoder: encoding delays no other request and stops when its client leaves."""

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
"""Text, or a medium: its chunk, number of tokens, and number of positions if that differs."""


def media_request(parts: Sequence[Part], **options: object) -> Request:
    """Return a greedy request for 8 tokens whose prompt consists of `parts`; `options` override fields."""
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
    return Request(id="media", prompt=tokens, media=tuple(spans), **fields)  # type: ignore[arg-type]


def image(name: str, n_tokens: int = 20, n_pos: int | None = None, *, causal: bool = True, slow: bool = False) -> Part:
    return FakeChunk(name, causal, slow), n_tokens, n_pos


async def test_other_requests_run_while_an_image_is_encoded() -> None:
    encoder = FakeEncoder()
    async with engine_over(FakeRunner(encoder=encoder), gather_ms=0.0) as engine:
        slow = asyncio.ensure_future(run(engine, media_request(["look: ", image("a", slow=True), " well?"])))
        await asyncio.to_thread(encoder.started.wait, 100)
        for number in range(3):
            assert len((await run(engine, media_request([f"text {number}"], max_tokens=20)))[0].text) > 0
        assert not slow.done()
        encoder.gate.set()
        (reply,) = await slow
        assert reply.error is None


async def test_request_cancelled_before_its_image_is_encoded_frees_its_slot_and_is_not_encoded() -> None:
    encoder = FakeEncoder(most=1)
    async with engine_over(FakeRunner(encoder=encoder, n_seq=2), gather_ms=0.0) as engine:
        slow = asyncio.ensure_future(run(engine, media_request(["look: ", image("a", slow=True)])))
        await asyncio.to_thread(encoder.started.wait, 100)
        cancelled = engine.submit(media_request(["look: ", image("b")]), lambda _events: None)
        engine.cancel(cancelled)
        assert (await run(engine, media_request(["text"])))[0].error is None  # it needs the freed slot
        encoder.gate.set()
        assert (await slow)[0].error is None
        assert (await run(engine, media_request(["see ", image("c")])))[0].error is None
        assert ["b"] not in encoder.batches


class WeaklyReferenced(FakeChunk):
    """A chunk without slots, so that `weakref.ref` accepts it."""


async def test_slot_does_not_keep_the_pixels_of_an_ended_request() -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder())) as engine:
        chunk = WeaklyReferenced("a")
        pixels = weakref.ref(chunk)
        await run(engine, media_request(["look: ", (chunk, 20, None)], n=2))
        del chunk
        await asyncio.to_thread(wait_until, lambda: gc.collect() >= 0 and pixels() is None, "the pixels are freed")


async def test_prompt_logprobs_cover_text_tokens_and_are_none_for_media_tokens() -> None:
    scored = {"prompt_logprobs": True, "want_logprobs": True, "n_probs": 1, "max_tokens": 1}
    parts = [f"text{TEXT}", image("a"), "and", image("b", causal=False), image("a", 20, 5), TEXT, image("c")]
    by_outputs: list[list[TokenLogprob | None]] = []
    for n_extra_outputs in (1, 7, 1000):
        async with engine_over(FakeRunner(n_extra_outputs=n_extra_outputs, encoder=FakeEncoder())) as engine:
            await run(engine, media_request(parts))
            (reply,) = await run(engine, media_request(parts, **scored))
            (other,) = await run(engine, media_request(["other", *parts[1:]], **scored))
        assert reply.error is None
        by_outputs.append([t for event in reply.events if isinstance(event, PromptLogprobs) for t in event.tokens])
        assert len([t for event in other.events if isinstance(event, PromptLogprobs) for t in event.tokens if t]) > 0
    assert by_outputs[0] == by_outputs[1] == by_outputs[2]
    assert [one and one.id for one in by_outputs[0]] == [t if t >= 0 else None for t in media_request(parts).prompt[1:]]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (media_request(["a", image("a", 100, causal=False)]), InvalidRequest),  # more than the n_ubatch of 64
        (media_request(["a", image("a", 250), "b" * 20]), ContextExceeded),
        (Request("x", [1, -5], media=()), InvalidRequest),
        (Request("x", [1, -5], media=(MediaSpan(0, 1, 1, True, "a", 0, b"", FakeChunk("a")),) * 2), InvalidRequest),
    ],
)
async def test_submit_refuses_media_that_cannot_be_decoded(request_: Request, error: type[Exception]) -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder())) as engine:
        with pytest.raises(error):
            engine.submit(request_, lambda _events: None)
