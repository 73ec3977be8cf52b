"""Stored and background responses, conversations and compaction, by OpenAI's client over a scripted model."""

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
from server.errors import Unavailable
from server.serving import background
from server.serving.services import Services
from tests.api.conftest import Api, Serve, idle, until
from tests.api.scripted import CHATML, openai_client, serve_scripted
from tests.api.streams import posting, typed_events
from tests.media_files import media_file
from tests.support.fakes import ASSISTANT, FakeLoader

REPLIES = {"Hi": "Hello!", "Bye": "Farewell.", "Again": "Once more."}


def serving(
    serve: Serve, steps: threading.Semaphore | None = None, **server: Any
) -> AbstractAsyncContextManager[tuple[Api, AsyncOpenAI]]:
    return serve_scripted(serve, REPLIES, steps, **server)


async def create(client: AsyncOpenAI, text: Any = "Hi", **fields: Any) -> Response:
    response = await client.responses.create(model="demo", input=text, **fields)
    assert isinstance(response, Response)
    return response


def text_of(items: list[Any]) -> list[str]:
    return [part.text for item in items for part in item.content]


async def test_previous_response_id_continues_the_conversation(serve: Serve) -> None:
    texts = ["Hi", "Hello!", "Bye", "Farewell.", "Again"]
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    async with serving(serve) as (_, client):
        first = await create(client)
        second = await create(client, "Bye", previous_response_id=first.id)
        third = await create(client, "Again", previous_response_id=second.id)
        whole = await create(client, turns)
        assert (second.output_text, third.output_text) == ("Farewell.", "Once more.")
        assert n_input(third) == n_input(whole)
        await client.responses.delete(first.id)  # responses that continue it are kept
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(first.id)
        assert n_input(await create(client, "Again", previous_response_id=second.id)) == n_input(third)
        with pytest.raises(BadRequestError):
            await create(client, "Again", previous_response_id=first.id)


async def test_response_keeps_its_history_if_its_parent_is_deleted_while_it_is_generated(serve: Serve) -> None:
    steps = threading.Semaphore(1000)
    async with serving(serve, steps) as (api, client):
        first = await create(client)
        second = await create(client, "Bye", previous_response_id=first.id)
        expected = n_input(await create(client, "Again", previous_response_id=second.id, store=False))
        await idle(api.loaded())
        while steps.acquire(blocking=False):
            pass
        generating = asyncio.create_task(create(client, "Bye", previous_response_id=first.id))
        await until(lambda: api.loaded().busy)
        await client.responses.delete(second.id)
        await client.responses.delete(first.id)
        steps.release(5000)
        third = await create(client, "Again", previous_response_id=(await generating).id)
    assert (third.output_text, n_input(third)) == ("Once more.", expected)


@pytest.mark.parametrize("fields", [{}, {"background": True}])
async def test_response_keeps_its_history_if_its_parent_is_deleted_before_it_is_stored(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, fields: dict[str, bool]
) -> None:
    async with serving(serve) as (api, client):
        state = api.app.state.services.state
        first = await create(client)
        kept = await create(client, "Bye", previous_response_id=first.id)
        expected = n_input(await create(client, "Again", previous_response_id=kept.id, store=False))
        await client.responses.delete(kept.id)
        change = state.change

        async def change_late(owner: str, *args: Any, **options: Any) -> Any:
            await state.drop(owner, first.id)
            return await change(owner, *args, **options)

        monkeypatch.setattr(state, "change", change_late)
        second = await create(client, "Bye", previous_response_id=first.id, **fields)
        while (await client.responses.retrieve(second.id)).status != "completed":
            pass
        third = await create(client, "Again", previous_response_id=second.id)
    assert (third.output_text, n_input(third)) == ("Once more.", expected)


def n_input(response: Response) -> int:
    assert response.usage
    return response.usage.input_tokens


async def test_chain_of_responses_stores_its_image_once(serve: Serve, tmp_path: Path) -> None:
    """Ten responses with one image of 5 MB must fit a quota of 8 MiB per key. Other keys lose nothing."""
    file = tmp_path / "state.sqlite3"
    names = ["sk-one", "sk-two"]
    settings = {"api_keys": names, "state": str(file), "state_quota": 8}
    replies = {f"Hi<|im_end|>\n{ASSISTANT}": "Hello!"}
    loader = FakeLoader(n_ctx_seq=4096, replies=replies, media=frozenset({"image"}))
    url = f"data:image/png;base64,{base64.b64encode(_png_of_5_mb()).decode()}"
    turn = {"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}
    async with serve(loader, models=CHATML, server=settings) as api:
        one, two = (openai_client(api, key) for key in names)
        other = await create(two)
        chain = [await create(one, [turn, {"role": "user", "content": "Hi"}])]
        while len(chain) < 10:
            chain.append(await create(one, "Hi", previous_response_id=chain[-1].id))
        assert {response.output_text for response in chain} == {"Hello!"}
        assert [(await one.responses.retrieve(response.id)).id for response in chain] == [each.id for each in chain]
        assert (await two.responses.retrieve(other.id)).id == other.id
        first = (await one.responses.input_items.list(chain[0].id, order="asc", limit=1)).data[0]
    assert url in str(first)
    assert _folder_size(tmp_path) < 16 << 20  # the file and its write-ahead log


def _folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _png_of_5_mb() -> bytes:
    """Return a small PNG with 5 MB of random bytes in a private chunk, which decoders skip."""
    png, chunk = media_file("tiny.png"), b"prVt" + os.urandom(5_000_000)
    end = png.rindex(b"IEND") - 4
    packed = (len(chunk) - 4).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
    return png[:end] + packed + png[end:]


async def test_input_items_are_listed_in_pages(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        items: Any = [{"role": "user", "content": f"number {n}"} for n in range(5)]
        response = await create(client, items, max_output_tokens=1)
        pages = [item async for item in client.responses.input_items.list(response.id, order="asc", limit=2)]
        newest = await client.responses.input_items.list(response.id, limit=1)
        with pytest.raises(BadRequestError):
            await client.responses.input_items.list(response.id, after="msg_unknown")
    assert text_of(pages) == [f"number {n}" for n in range(5)]
    assert (text_of(newest.data), newest.has_more) == (["number 4"], True)


async def test_state_survives_a_restart(serve: Serve, tmp_path: Path) -> None:
    file = str(tmp_path / "state.sqlite3")
    async with serving(serve, state=file) as (_, client):
        first = await create(client)
        conversation = await client.conversations.create(metadata={"k": "v"})
        await create(client, conversation=conversation.id)
    async with serving(serve, state=file) as (_, client):
        assert (await client.responses.retrieve(first.id)).output_text == "Hello!"
        second = await create(client, "Bye", previous_response_id=first.id)
        items = await client.conversations.items.list(conversation.id, order="asc")
    assert second.output_text == "Farewell."
    assert text_of(items.data) == ["Hi", "Hello!"]
    assert (tmp_path / "state.sqlite3").stat().st_mode & 0o077 == 0


async def test_response_that_does_not_fit_its_conversation_is_not_stored(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(serve) as (_, client):
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Remember me."}])
        monkeypatch.setattr("server.state.objects.MAX_CONVERSATION_VALUES", 20)
        with pytest.raises(BadRequestError, match="at most 20 JSON values"):
            await client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Hi"}])
        response = await create(client, conversation=conversation.id)
        assert (response.status, response.output_text) == ("completed", "Hello!")
        assert orjson.loads(response.to_json())["store"] is False
        await client.conversations.update(conversation.id, metadata={"topic": "demo"})
        items = await client.conversations.items.list(conversation.id)
    assert text_of(items.data) == ["Remember me."]


async def test_conversation_collects_the_items_of_its_responses(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Remember me."}])
        first = await create(client, conversation=conversation.id)
        second = await create(client, "Bye", conversation={"id": conversation.id})
        items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        oldest: Any = {"item_id": items[0].id or "", "conversation_id": conversation.id}
        assert await client.conversations.items.retrieve(**oldest) == items[0]
        await client.conversations.items.delete(**oldest)
        remaining = await client.conversations.items.list(conversation.id)
        updated = await client.conversations.update(conversation.id, metadata={"topic": "demo"})
        assert (await client.conversations.delete(conversation.id)).deleted
        with pytest.raises(BadRequestError):
            await create(client, conversation=conversation.id)
        with pytest.raises(NotFoundError):
            await client.conversations.retrieve(conversation.id)
    assert text_of(items) == ["Remember me.", "Hi", "Hello!", "Bye", "Farewell."]
    assert len(remaining.data) == len(items) - 1
    assert n_input(second) > n_input(first)
    assert first.conversation
    assert (first.conversation.id, updated.metadata) == (conversation.id, {"topic": "demo"})


async def test_new_items_of_a_conversation_can_name_stored_items(serve: Serve) -> None:
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "t", "arguments": "{}", "server_label": "s"}
    approval: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    async with serving(serve) as (_, client):
        response = await create(client)
        reference: Any = {"type": "item_reference", "id": response.output[0].id}
        items: list[Any] = [request, reference]
        conversation = await client.conversations.create(items=items)
        await client.conversations.items.create(conversation.id, items=[approval, reference])
        found = [item.type async for item in client.conversations.items.list(conversation.id, order="asc")]
        with pytest.raises(BadRequestError, match="no approval request"):
            await client.conversations.create(items=[approval])
    assert found == ["mcp_approval_request", "message", "mcp_approval_response", "message"]


async def test_conversation_with_an_item_twice_is_paged_to_its_end(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        conversation = await client.conversations.create()
        first = await create(client, conversation=conversation.id)
        again: Any = [item.to_dict() for item in first.output]
        added = await client.conversations.items.create(conversation.id, items=again)
        await create(client, [*again, {"role": "user", "content": "Bye"}], conversation=conversation.id)
        paged = client.conversations.items.list(conversation.id, order="asc", limit=1)
        ids = [item.id async for item in paged]
    assert added.data[0].id in ids
    assert len(set(ids)) == len(ids) == 6


async def test_background_response_is_polled_and_streamed_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = threading.Semaphore(0)
    monkeypatch.setattr(background, "MAX_BACKGROUND", 1)
    async with serving(serve, steps) as (api, client):
        queued = await create(client, background=True)
        assert queued.status == "queued"
        with pytest.raises(RateLimitError):
            await client.with_options(max_retries=0).responses.create(model="demo", input="Hi", background=True)
        assert b'reason="background_full"' in api.app.state.services.metrics.render("")[0]
        assert (await client.responses.retrieve(queued.id)).status in ("queued", "in_progress")
        with pytest.raises(BadRequestError, match="not complete") as unfinished:  # its output would be left out
            await create(client, "Bye", previous_response_id=queued.id)
        assert unfinished.value.param == "previous_response_id"
        steps.release(5000)
        events = [event async for event in await client.responses.retrieve(queued.id, stream=True)]
        done = await client.responses.retrieve(queued.id)
        after: Any = {"stream": True, "starting_after": events[2].sequence_number}
        assert [event async for event in await client.responses.retrieve(queued.id, **after)] == events[3:]
    assert (done.status, done.output_text, done.background) == ("completed", "Hello!", True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)) == "Hello!"


async def test_stream_of_a_background_response_begins_while_it_is_queued(serve: Serve) -> None:
    """A client needs the id to resume the stream."""
    steps = threading.Semaphore(0)
    body = {"input": "Hi", "background": True, "stream": True}
    async with serving(serve, steps) as (api, client), posting(api.app, "/v1/responses", body) as stream:
        assert await stream.start() == 200
        chunks = [await stream.chunk(), await stream.chunk()]
        steps.release(5000)
        chunks += [chunk async for chunk in stream.chunks()]
        events = typed_events(b"".join(chunks).decode())
        response_id = events[0]["response"]["id"]
        assert (await client.responses.retrieve(response_id)).output_text == "Hello!"
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert (kinds[:4], kinds[-1]) == (["created", "queued", "in_progress", "output_item.added"], "completed")
    assert [events[n]["response"]["status"] for n in range(3)] == ["queued", "queued", "in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_only_background_responses_can_be_cancelled(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        foreground = await create(client)
        with pytest.raises(BadRequestError):
            await client.responses.cancel(foreground.id)


async def test_concurrent_cancellations_of_a_background_response_end_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, storing, may_store = threading.Semaphore(3), asyncio.Event(), asyncio.Event()
    async with serving(serve, steps) as (api, client):
        queued = await create(client, background=True, extra_body={"ignore_eos": True})
        while (await client.responses.retrieve(queued.id)).status == "queued":
            pass
        (stream,) = api.app.state.services.background.values()
        state = api.app.state.services.state
        update = state.update

        async def update_late(*args: Any) -> Any:
            storing.set()
            await may_store.wait()
            return await update(*args)

        monkeypatch.setattr(state, "update", update_late)
        first = asyncio.create_task(client.responses.cancel(queued.id))
        await storing.wait()
        second = asyncio.create_task(client.responses.cancel(queued.id))
        await until(lambda: stream._task.cancelling() == 2)
        may_store.set()
        assert [(await each).status for each in (first, second)] == ["cancelled", "cancelled"]
        assert (await client.responses.cancel(queued.id)).status == "cancelled"
        steps.release(5000)
        assert (await create(client)).output_text == "Hello!"


async def test_background_response_whose_end_cannot_be_stored_fails_when_the_state_works_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state fails for longer than the server waits for it. The response must not stay in progress."""
    monkeypatch.setattr(background, "POLL_S", 0.001)
    steps, refused = threading.Semaphore(0), 0
    async with serving(serve, steps) as (api, client):
        app: Services = api.app.state.services
        queued = await create(client, background=True)
        await until(lambda: api.loaded().busy)
        change = app.state.change

        async def refuse(*_args: Any, **_options: Any) -> None:
            nonlocal refused
            refused += 1
            raise Unavailable("the disk is full")

        monkeypatch.setattr(app.state, "change", refuse)
        steps.release(5000)
        await until(lambda: refused > 100)
        assert not app.background
        monkeypatch.setattr(app.state, "change", change)
        while (ended := await client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
            pass
        assert ended.status == "failed"
        await client.responses.delete(queued.id)


async def test_background_response_that_is_stopped_before_it_begins_is_not_kept(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_S", 0.001)
    async with serving(serve) as (api, client):
        app: Services = api.app.state.services
        put = app.state.put

        async def put_and_stop(*args: Any, **options: Any) -> None:
            await put(*args, **options)
            asyncio.get_running_loop().call_soon(stop)  # before the task that generates

        def stop() -> None:
            (stream,) = app.background.values()
            stream.stop()

        monkeypatch.setattr(app.state, "put", put_and_stop)
        queued = await create(client, background=True)
        await until(lambda: not app.background)
        while (ended := await client.responses.retrieve(queued.id)).status == "queued":
            pass
        assert ended.status == "cancelled"


async def test_background_response_is_complete_although_its_events_exceed_the_quota(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(serve) as (api, client):
        state = api.app.state.services.state
        attach = state.attach

        async def attach_without_quota(*args: Any) -> None:
            monkeypatch.setattr(state, "quota_bytes", 1)
            await attach(*args)

        monkeypatch.setattr(state, "attach", attach_without_quota)
        queued = await client.responses.create(model="demo", input="Hi", background=True, stream=True)
        assert [event.type async for event in queued][-1] == "response.completed"


async def test_failed_background_response_has_its_error(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        queued = await create(client, "x " * 9000, background=True)
        events = [event async for event in await client.responses.retrieve(queued.id, stream=True)]
        failed = await client.responses.retrieve(queued.id)
    last = events[-1]
    assert last.type == "response.failed"
    assert (last.response.id, last.response.error, failed.status) == (queued.id, failed.error, "failed")
    assert failed.error
    assert failed.error.to_dict()["code"] == "context_length_exceeded"
    assert "context" in failed.error.message
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_compacted_conversation_continues_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    file = str(tmp_path / "state.sqlite3")
    replies = {**REPLIES, compaction._INSTRUCTION: "Ada said hi."}
    long: Any = [{"role": "user", "content": f"number {n} " * 9} for n in range(8)]
    long.append({"role": "user", "content": "Hi"})
    async with serve_scripted(serve, replies, state=file) as (_, client):
        first = await create(client, long)
        items: Any = [*long, *(item.model_dump() for item in first.output), {"role": "user", "content": "Thanks"}]
        compacted = await client.responses.compact(model="demo", input=items, instructions="Be kind.")
        again = await client.responses.compact(model="demo", previous_response_id=first.id)
    TypeAdapter(CompactedResponse).validate_python(compacted.to_dict())
    (item,) = compacted.output
    assert isinstance(item, ResponseCompactionItem)
    assert [each.type for each in again.output] == ["compaction"]
    async with serving(serve, state=file) as (_, client):  # the encryption key survives the restart
        continued: Any = [item.to_dict(), {"role": "user", "content": "Bye"}]
        second = await create(client, continued)
        assert second.output_text == "Farewell."
        with pytest.raises(BadRequestError):
            await create(client, [{**continued[0], "encrypted_content": item.encrypted_content[:-8] + "AAAAAAA="}])
        messages = [*(message["content"] for message in long), "Thanks"]
        content = orjson.dumps({"summary": "Ada said hi.", "messages": messages}).decode()
        plain: Any = [{"role": "user", "content": compaction.compacted_text(content)}, *continued[1:]]
        assert n_input(second) == n_input(await create(client, plain))


async def test_compaction_error_names_the_invalid_field(api: Api) -> None:
    for body in ({}, {"input": 5}, {"input": [{"role": "robot", "content": "Hi"}]}):
        await api.expect("POST /v1/responses/compact", {"model": "demo", **body}, 400, '"param":"input')


def copy_as_killed(file: Path) -> str:
    """Copy the state file as `kill -9` would leave it now. Return the path of the copy."""
    copy = file.with_name("copy.sqlite3")
    for suffix in ("", "-wal"):
        shutil.copy(f"{file}{suffix}", f"{copy}{suffix}")
    return str(copy)


async def test_background_response_interrupted_by_a_restart_has_failed(serve: Serve, tmp_path: Path) -> None:
    steps = threading.Semaphore(3)
    file = tmp_path / "state.sqlite3"
    async with serving(serve, steps, state=str(file)) as (_, client):
        queued = await create(client, background=True)
        copy = copy_as_killed(file)
        steps.release(5000)
    async with serving(serve, state=copy) as (_, client):
        while (interrupted := await client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
            pass
        events = [e async for e in await client.responses.retrieve(queued.id, stream=True, starting_after=7)]
    assert interrupted.status == "failed"
    assert interrupted.error
    assert [(event.type, event.sequence_number) for event in events] == [("response.failed", 8)]


async def test_server_does_not_touch_running_responses_of_another_server(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_S", 0.01)
    steps = threading.Semaphore(0)
    file = str(tmp_path / "state.sqlite3")
    async with serving(serve, steps, state=file) as (_, first):
        queued = await create(first, background=True)
        async with serving(serve, state=file) as (_, second):
            running = await second.responses.retrieve(queued.id)
            operations: list[Any] = [
                second.responses.cancel(queued.id),
                second.responses.delete(queued.id),
                second.responses.retrieve(queued.id, stream=True),
            ]
            for operation in operations:
                with pytest.raises(BadRequestError, match="another server"):
                    await operation
            steps.release(5000)
            while (done := await second.responses.retrieve(queued.id)).status != "completed":
                pass
    assert running.status in ("queued", "in_progress")
    assert done.output_text == "Hello!"


@pytest.mark.parametrize(("keys", "shared"), [([], True), (["sk-one", "sk-two"], False)])
async def test_stored_objects_are_private_to_their_key_if_there_are_keys(
    serve: Serve, keys: list[str], shared: bool
) -> None:
    async with serving(serve, api_keys=keys) as (_, client):
        response = await create(client)
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Hi"}])
        item = (await client.conversations.items.list(conversation.id)).data[0].id or ""
        file = await client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
        new_batch: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = await client.batches.create(**new_batch)
        other = client.with_options(api_key="sk-two")
        reference: Any = [{"type": "item_reference", "id": response.output[0].id}]
        continued: list[Any] = [
            create(other, "x", previous_response_id=response.id, max_output_tokens=1),
            create(other, reference, max_output_tokens=1),
        ]
        operations: list[Any] = [
            other.responses.retrieve(response.id),
            other.responses.input_items.list(response.id),
            other.conversations.retrieve(conversation.id),
            other.conversations.update(conversation.id, metadata={}),
            other.conversations.items.list(conversation.id),
            other.conversations.items.retrieve(item, conversation_id=conversation.id),
            other.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Hi"}]),
            other.conversations.items.delete(item, conversation_id=conversation.id),
            other.batches.retrieve(batch.id),
            other.batches.create(**new_batch),
            other.files.retrieve(file.id),
            other.files.content(file.id),
            other.responses.delete(response.id),
            other.conversations.delete(conversation.id),
            other.files.delete(file.id),
        ]
        listed = await other.files.list()
        for operation in (*continued, *operations):
            if shared:
                await operation
            else:
                with pytest.raises(BadRequestError if operation in continued else NotFoundError):
                    await operation
    assert [each.id for each in listed.data] == ([file.id] if shared else [])
