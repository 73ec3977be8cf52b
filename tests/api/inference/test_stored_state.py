"""Stored responses, background responses and conversations, through the official client over a scripted model."""

import asyncio
import base64
import os
import shutil
import threading
import zlib
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError
from openai.types.responses import CompactedResponse, Response, ResponseCompactionItem, ResponseTextDeltaEvent
from pydantic import TypeAdapter

from server.dialects.responses import compaction
from server.serving import background
from tests.api.conftest import Api, Serve, until
from tests.api.scripted import CHATML
from tests.api.scripted import opened as serving
from tests.media_files import media_file
from tests.support.fakes import ASSISTANT, FakeLoader

REPLIES = {"Hi": "Hello!", "Bye": "Farewell.", "Again": "Once more."}


def opened(
    serve: Serve, steps: threading.Semaphore | None = None, **server: Any
) -> AbstractAsyncContextManager[tuple[Api, AsyncOpenAI]]:
    return serving(serve, REPLIES, steps, **server)


async def ask(client: AsyncOpenAI, text: Any = "Hi", **fields: Any) -> Response:
    response = await client.responses.create(model="demo", input=text, **fields)
    assert isinstance(response, Response)
    return response


def text_of(items: list[Any]) -> list[str]:
    return [part.text for item in items for part in item.content]


async def test_a_chain_of_responses_is_one_conversation(serve: Serve) -> None:
    said = ["Hi", "Hello!", "Bye", "Farewell.", "Again"]
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
    async with opened(serve) as (_, client):
        first = await ask(client)
        second = await ask(client, "Bye", previous_response_id=first.id)
        third = await ask(client, "Again", previous_response_id=second.id)
        whole = await ask(client, turns)
        assert (second.output_text, third.output_text) == ("Farewell.", "Once more.")
        assert n_input(third) == n_input(whole)
        await client.responses.delete(first.id)  # those that continue it stay
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(first.id)
        assert n_input(await ask(client, "Again", previous_response_id=second.id)) == n_input(third)
        with pytest.raises(BadRequestError):
            await ask(client, "Again", previous_response_id=first.id)


def n_input(response: Response) -> int:
    assert response.usage
    return response.usage.input_tokens


async def test_a_chain_of_ten_turns_stores_its_image_once(serve: Serve, tmp_path: Path) -> None:
    """Ten responses of a chain with one image of 5 MB fit a quota of 8 MiB per key; other keys lose nothing."""
    file = tmp_path / "state.sqlite3"
    names = ["sk-one", "sk-two"]
    settings = {"api_keys": names, "state": str(file), "state_quota": 8}
    replies = {f"Hi<|im_end|>\n{ASSISTANT}": "Hello!"}
    loader = FakeLoader(n_ctx_seq=4096, replies=replies, media=frozenset({"image"}))
    url = f"data:image/png;base64,{base64.b64encode(_png_of_5_mb()).decode()}"
    shown = {"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}
    async with serve(loader, models=CHATML, server=settings) as api:
        http: Any = api.client
        one, two = (AsyncOpenAI(base_url="http://test/v1", api_key=key, http_client=http) for key in names)
        other = await ask(two)
        chain = [await ask(one, [shown, {"role": "user", "content": "Hi"}])]
        while len(chain) < 10:
            chain.append(await ask(one, "Hi", previous_response_id=chain[-1].id))
        assert {response.output_text for response in chain} == {"Hello!"}
        assert [(await one.responses.retrieve(response.id)).id for response in chain] == [each.id for each in chain]
        assert (await two.responses.retrieve(other.id)).id == other.id
        first = (await one.responses.input_items.list(chain[0].id, order="asc", limit=1)).data[0]
    assert url in str(first)
    assert _size(tmp_path) < 16 << 20  # the file and its write-ahead log


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _png_of_5_mb() -> bytes:
    """Return a small PNG with 5 MB of random bytes in a private chunk, which decoders skip."""
    png, chunk = media_file("tiny.png"), b"prVt" + os.urandom(5_000_000)
    end = png.rindex(b"IEND") - 4
    packed = (len(chunk) - 4).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
    return png[:end] + packed + png[end:]


async def test_input_items_are_listed_in_pages(serve: Serve) -> None:
    async with opened(serve) as (_, client):
        given: Any = [{"role": "user", "content": f"number {n}"} for n in range(5)]
        response = await ask(client, given, max_output_tokens=1)
        pages = [item async for item in client.responses.input_items.list(response.id, order="asc", limit=2)]
        newest = await client.responses.input_items.list(response.id, limit=1)
        with pytest.raises(BadRequestError):
            await client.responses.input_items.list(response.id, after="msg_unknown")
    assert text_of(pages) == [f"number {n}" for n in range(5)]
    assert (text_of(newest.data), newest.has_more) == (["number 4"], True)


async def test_state_survives_a_restart(serve: Serve, tmp_path: Path) -> None:
    file = str(tmp_path / "state.sqlite3")
    async with opened(serve, state=file) as (_, client):
        first = await ask(client)
        conversation = await client.conversations.create(metadata={"k": "v"})
        await ask(client, conversation=conversation.id)
    async with opened(serve, state=file) as (_, client):
        assert (await client.responses.retrieve(first.id)).output_text == "Hello!"
        second = await ask(client, "Bye", previous_response_id=first.id)
        items = await client.conversations.items.list(conversation.id, order="asc")
    assert second.output_text == "Farewell."
    assert text_of(items.data) == ["Hi", "Hello!"]
    assert (tmp_path / "state.sqlite3").stat().st_mode & 0o077 == 0


async def test_a_response_says_that_it_does_not_fit_its_conversation(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(serve) as (_, client):
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Remember me."}])
        monkeypatch.setattr("server.state.objects.MAX_CONVERSATION_VALUES", 20)
        with pytest.raises(BadRequestError, match="at most 20 JSON values"):
            await client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Hi"}])
        response = await ask(client, conversation=conversation.id)
        assert (response.status, response.output_text) == ("completed", "Hello!")
        assert orjson.loads(response.to_json())["store"] is False
        await client.conversations.update(conversation.id, metadata={"topic": "demo"})
        items = await client.conversations.items.list(conversation.id)
    assert text_of(items.data) == ["Remember me."]


async def test_a_conversation_grows_with_its_responses(serve: Serve) -> None:
    async with opened(serve) as (_, client):
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Remember me."}])
        first = await ask(client, conversation=conversation.id)
        second = await ask(client, "Bye", conversation={"id": conversation.id})
        items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        oldest: Any = {"item_id": items[0].id or "", "conversation_id": conversation.id}
        assert await client.conversations.items.retrieve(**oldest) == items[0]
        await client.conversations.items.delete(**oldest)
        fewer = await client.conversations.items.list(conversation.id)
        updated = await client.conversations.update(conversation.id, metadata={"topic": "demo"})
        assert (await client.conversations.delete(conversation.id)).deleted
        with pytest.raises(BadRequestError):
            await ask(client, conversation=conversation.id)
        with pytest.raises(NotFoundError):
            await client.conversations.retrieve(conversation.id)
    assert text_of(items) == ["Remember me.", "Hi", "Hello!", "Bye", "Farewell."]
    assert len(fewer.data) == len(items) - 1
    assert n_input(second) > n_input(first)
    assert first.conversation
    assert (first.conversation.id, updated.metadata) == (conversation.id, {"topic": "demo"})


async def test_a_background_response_continues_without_its_client(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = threading.Semaphore(0)
    monkeypatch.setattr(background, "MAX_BACKGROUND", 1)
    async with opened(serve, steps) as (api, client):
        queued = await ask(client, background=True)
        assert queued.status == "queued"
        with pytest.raises(RateLimitError):
            await client.with_options(max_retries=0).responses.create(model="demo", input="Hi", background=True)
        assert b'reason="background_full"' in api.app.state.services.metrics.render("")[0]
        assert (await client.responses.retrieve(queued.id)).status in ("queued", "in_progress")
        steps.release(5000)
        events = [event async for event in await client.responses.retrieve(queued.id, stream=True)]
        done = await client.responses.retrieve(queued.id)
        after: Any = {"stream": True, "starting_after": events[2].sequence_number}
        assert [event async for event in await client.responses.retrieve(queued.id, **after)] == events[3:]
    assert (done.status, done.output_text, done.background) == ("completed", "Hello!", True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)) == "Hello!"


async def test_a_background_response_is_cancelled(serve: Serve) -> None:
    steps = threading.Semaphore(3)
    async with opened(serve, steps) as (_api, client):
        queued = await ask(client, background=True, extra_body={"ignore_eos": True})
        cancelled = await client.responses.cancel(queued.id)
        again = await client.responses.cancel(queued.id)
        steps.release(5000)
        after = await ask(client)
        with pytest.raises(BadRequestError):
            await client.responses.cancel(after.id)
    assert (cancelled.status, again.status) == ("cancelled", "cancelled")
    assert after.output_text == "Hello!"


async def test_a_background_response_that_is_cancelled_twice_ends(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, storing, go_on = threading.Semaphore(3), asyncio.Event(), asyncio.Event()
    async with opened(serve, steps) as (api, client):
        queued = await ask(client, background=True, extra_body={"ignore_eos": True})
        while (await client.responses.retrieve(queued.id)).status == "queued":
            pass
        (stream,) = api.app.state.services.background.values()
        state = api.app.state.services.state
        update = state.update

        async def slowly(*args: Any) -> Any:
            storing.set()
            await go_on.wait()
            return await update(*args)

        monkeypatch.setattr(state, "update", slowly)
        first = asyncio.create_task(client.responses.cancel(queued.id))
        await storing.wait()
        second = asyncio.create_task(client.responses.cancel(queued.id))
        await until(lambda: stream._task.cancelling() == 2)
        go_on.set()
        assert [(await each).status for each in (first, second)] == ["cancelled", "cancelled"]
        steps.release(5000)


async def test_a_background_response_that_fails_says_why(serve: Serve) -> None:
    async with opened(serve) as (_, client):
        queued = await ask(client, "x " * 9000, background=True)
        events = [event async for event in await client.responses.retrieve(queued.id, stream=True)]
        failed = await client.responses.retrieve(queued.id)
    assert events[-1].type == "response.failed"
    assert failed.status == "failed"
    assert failed.error
    assert "context" in failed.error.message


async def test_a_compacted_conversation_continues(serve: Serve, tmp_path: Path) -> None:
    file = str(tmp_path / "state.sqlite3")
    replies = {**REPLIES, compaction._INSTRUCTION: "Ada said hi."}
    long: Any = [{"role": "user", "content": f"number {n} " * 9} for n in range(8)]
    long.append({"role": "user", "content": "Hi"})
    async with serving(serve, replies, state=file) as (_, client):
        first = await ask(client, long)
        given: Any = [*long, *(item.model_dump() for item in first.output), {"role": "user", "content": "Thanks"}]
        compacted = await client.responses.compact(model="demo", input=given, instructions="Be kind.")
        again = await client.responses.compact(model="demo", previous_response_id=first.id)
    TypeAdapter(CompactedResponse).validate_python(compacted.to_dict())
    (item,) = compacted.output
    assert isinstance(item, ResponseCompactionItem)
    assert [each.type for each in again.output] == ["compaction"]
    async with serving(serve, REPLIES, state=file) as (_, client):  # the key outlives the server
        continued: Any = [item.to_dict(), {"role": "user", "content": "Bye"}]
        second = await ask(client, continued)
        assert second.output_text == "Farewell."
        with pytest.raises(BadRequestError):
            await ask(client, [{**continued[0], "encrypted_content": item.encrypted_content[:-8] + "AAAAAAA="}])
        messages = [*(message["content"] for message in long), "Thanks"]
        content = orjson.dumps({"summary": "Ada said hi.", "messages": messages}).decode()
        plain: Any = [{"role": "user", "content": compaction.compacted_text(content)}, *continued[1:]]
        assert n_input(second) == n_input(await ask(client, plain))


async def test_a_wrong_compaction_names_the_field(api: Api) -> None:
    for body in ({}, {"input": 5}, {"input": [{"role": "robot", "content": "Hi"}]}):
        await api.expect("POST /v1/responses/compact", {"model": "demo", **body}, 400, '"param":"input')


def as_killed(file: Path) -> str:
    """Return a copy of the state file as `kill -9` would leave it now."""
    copy = file.with_name("copy.sqlite3")
    for suffix in ("", "-wal"):
        shutil.copy(f"{file}{suffix}", f"{copy}{suffix}")
    return str(copy)


async def test_what_a_restart_interrupts_has_failed(serve: Serve, tmp_path: Path) -> None:
    steps = threading.Semaphore(3)
    file = tmp_path / "state.sqlite3"
    async with opened(serve, steps, state=str(file)) as (_, client):
        queued = await ask(client, background=True)
        copy = as_killed(file)
        steps.release(5000)
    async with opened(serve, state=copy) as (_, client):
        while (found := await client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
            pass
        events = [e async for e in await client.responses.retrieve(queued.id, stream=True, starting_after=7)]
    assert found.status == "failed"
    assert found.error
    assert [(event.type, event.sequence_number) for event in events] == [("response.failed", 8)]


async def test_a_server_leaves_the_responses_of_another_one_alone(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_S", 0.01)
    steps = threading.Semaphore(0)
    file = str(tmp_path / "state.sqlite3")
    async with opened(serve, steps, state=file) as (_, first):
        queued = await ask(first, background=True)
        async with opened(serve, state=file) as (_, second):
            found = await second.responses.retrieve(queued.id)
            uses: list[Any] = [second.responses.cancel(queued.id), second.responses.retrieve(queued.id, stream=True)]
            for use in uses:
                with pytest.raises(BadRequestError, match="another server"):
                    await use
            steps.release(5000)
            while (done := await second.responses.retrieve(queued.id)).status != "completed":
                pass
    assert found.status in ("queued", "in_progress")
    assert done.output_text == "Hello!"


@pytest.mark.parametrize(("keys", "shared"), [([], True), (["sk-one", "sk-two"], False)])
async def test_stored_objects_belong_to_a_key_or_without_keys_to_all(
    serve: Serve, keys: list[str], shared: bool
) -> None:
    async with opened(serve, api_keys=keys) as (_, client):
        response = await ask(client)
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Hi"}])
        item = (await client.conversations.items.list(conversation.id)).data[0].id or ""
        file = await client.files.create(file=("a.txt", b"hello"), purpose="user_data")
        other = client.with_options(api_key="sk-two")
        reference: Any = [{"type": "item_reference", "id": response.output[0].id}]
        continued: list[Any] = [
            ask(other, "x", previous_response_id=response.id, max_output_tokens=1),
            ask(other, reference, max_output_tokens=1),
        ]
        uses: list[Any] = [
            other.responses.retrieve(response.id),
            other.responses.input_items.list(response.id),
            other.conversations.retrieve(conversation.id),
            other.conversations.update(conversation.id, metadata={}),
            other.conversations.items.list(conversation.id),
            other.conversations.items.retrieve(item, conversation_id=conversation.id),
            other.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Hi"}]),
            other.conversations.items.delete(item, conversation_id=conversation.id),
            other.files.retrieve(file.id),
            other.files.content(file.id),
            other.responses.delete(response.id),
            other.conversations.delete(conversation.id),
            other.files.delete(file.id),
        ]
        listed = await other.files.list()
        for use in (*continued, *uses):
            if shared:
                await use
            else:
                with pytest.raises(BadRequestError if use in continued else NotFoundError):
                    await use
    assert [each.id for each in listed.data] == ([file.id] if shared else [])
