"""``POST /v1/responses``, its ``/input_tokens``, and the responses that are stored."""

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, LlamapoolError, NotFound, QueueFull, short
from server.media.source import Seen
from server.pool.model import LoadedModel
from server.routes.background import BackgroundRun, unpacked
from server.routes.generate import Ask, StreamWords, answer, compute, detached
from server.routes.listing import ListQuery, list_reply
from server.routes.services import owner_of, services
from server.state.objects import Json, Objects, page
from server.transport.bodies.read import read_as, read_later
from server.transport.handlers import error_body
from server.transport.reply import json_reply
from server.transport.streams.event_socket import CONNECTION
from server.transport.streams.sse import event_stream
from server.wire.chat.read import input_tokens
from server.wire.common import Header
from server.wire.generation import Generation
from server.wire.responses.history import NO_HISTORY, History, items_to_store, references
from server.wire.responses.read import (
    FIELDS,
    ResponseAsked,
    new_response_id,
    read_response,
    response_fields,
    response_generation,
)
from server.wire.responses.write import EARLY_PING, Keep, ResponseFrame, ResponseStream, failed_early
from server.wire.warnings import warning_headers

logger = logging.getLogger(__name__)
router = APIRouter(tags=["responses"])
MAX_BACKGROUND = 1000
"""Background responses of all clients that may be under way at once."""
MAX_REMEMBERED, MAX_REMEMBERED_ITEMS = 32, 16384
"""Responses, and items in all of them, that a WebSocket connection remembers although ``store`` is false."""
DAY_S = 86400.0
UNFINISHED = ("queued", "in_progress")


@dataclass(slots=True)
class ConnectionMemory:
    """The responses of one WebSocket connection that are not stored: the items of each one's whole history, by id."""

    histories: OrderedDict[str, list[Json]] = field(default_factory=OrderedDict)

    def remember(self, response_id: str, items: list[Json]) -> None:
        """Keep one response's history and forget the oldest that are too many."""
        self.histories[response_id] = items
        while len(self.histories) > MAX_REMEMBERED or sum(map(len, self.histories.values())) > MAX_REMEMBERED_ITEMS:
            self.histories.popitem(last=False)


@router.post("/v1/responses")
@router.post("/responses")
async def create_response(request: Request) -> Response:
    """OpenAI's Responses, with llama.cpp's fields beside OpenAI's."""
    asked, headers = await _read(request)
    response_id = new_response_id()
    writers: list[ResponseStream] = []
    keep = _keeper(request)

    def prepare(model: LoadedModel, seen: Seen) -> Generation:
        generation = response_generation(asked, model, keep, seen, response_id)
        if isinstance(generation.writer, ResponseStream):
            writers.append(generation.writer)
        return generation

    def failed(status: int, error: Json) -> bytes:
        return b"".join(writers[-1].fail(status, error["error"])) if writers else failed_early(status, error["error"])

    def ping() -> bytes:
        return writers[-1].ping() if writers else EARLY_PING

    words = StreamWords(failed, ping)
    if asked.body.background:
        ask = Ask(asked.fields.model, prepare, asked.conversation.media, headers, asked.fields.cache_salt, words=words)
        return await _start_in_background(request, asked, ask, response_id)
    return await answer(request, asked.fields, prepare, headers, asked.conversation.media, words)


async def _read(request: Request) -> tuple[ResponseAsked, dict[str, str]]:
    """Read the body; what it continues is fetched in between, where it names any of that."""

    def checked(given: dict[str, Any], history: History) -> tuple[ResponseAsked, dict[str, str]]:
        asked = read_response(given, history)
        return asked, warning_headers(given, FIELDS, warnings=asked.conversation.warnings)

    def first(given: dict[str, Any]) -> tuple[ResponseAsked, dict[str, str]] | dict[str, Any]:
        names_state = any(given.get(name) for name in ("previous_response_id", "conversation"))
        return given if names_state or references(given.get("input")) else checked(given, NO_HISTORY)

    found = await read_as(request, first)
    if isinstance(found, tuple):
        return found
    history = await _history(request, found)
    return await read_later(request, lambda: checked(found, history))


async def _history(request: Request, given: dict[str, Any]) -> History:
    """Fetch the stored items that a body names. Raises `InvalidRequest` for those that its client does not have."""
    state, owner = services(request).state, owner_of(request)
    previous, conversation = given.get("previous_response_id"), given.get("conversation")
    if previous and conversation:
        raise InvalidRequest("conversation: cannot be combined with previous_response_id; send one", "conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    items: list[Json] = []
    named = "previous_response_id"
    if isinstance(previous, str) and previous:
        found = _connection(request).histories.get(previous) or await state.chain(owner, previous)
        if found is None:
            raise InvalidRequest(f"Previous response with id '{short(previous)}' not found.", "previous_response_id")
        items = found
    elif isinstance(conversation, str) and conversation:
        if await state.get(owner, "conversation", conversation) is None:
            raise InvalidRequest(f"Conversation with id '{short(conversation)}' not found.", "conversation")
        items, named = await state.items(owner, conversation), "conversation"
    wanted = references(given.get("input"))
    remembered = {
        item["id"]: item for each in _connection(request).histories.values() for item in each if item["id"] in wanted
    }
    referenced = {**await state.find_items(owner, wanted - set(remembered)), **remembered} if wanted else {}
    return History(items, named, referenced)


def _keeper(request: Request) -> Callable[[ResponseAsked, bool], Keep]:
    """Return what makes the function that stores a finished response."""
    used, owner, connection = services(request), owner_of(request), _connection(request)
    remembers = CONNECTION in request.scope

    def keeper(asked: ResponseAsked, prefilled: bool) -> Keep:
        async def keep(response: Json) -> bool:
            inputs = items_to_store(asked.body.input, asked.history)
            inputs = inputs[:-1] if prefilled else inputs  # the output repeats the message that it continues
            if remembers and not asked.body.stored:
                connection.remember(response["id"], [*asked.history.items, *inputs, *response["output"]])
            conversation = asked.body.conversation_id
            try:
                if asked.body.stored:
                    previous = asked.body.previous_response_id
                    parent = None if previous in connection.histories else previous
                    expires = time.time() + used.options.state_days * DAY_S if used.options.state_days else None
                    await used.state.put(
                        *(owner, "response", {**response, "output": []}),
                        parent=parent,
                        inputs=[*asked.history.items, *inputs] if previous and parent is None else inputs,
                        outputs=response["output"],
                        expires_at=expires,
                        append_to=conversation,
                    )
                elif conversation is not None:
                    await used.state.append(owner, conversation, [*inputs, *response["output"]])
            except LlamapoolError as error:
                logger.warning("a response was not stored: %s", error.message)
                return False
            return asked.body.stored

        return keep

    return keeper


async def _start_in_background(request: Request, asked: ResponseAsked, ask: Ask, response_id: str) -> Response:
    """Store the response as queued and generate it in a task of its own. Reply at once, or with its events."""
    used, owner = services(request), owner_of(request)
    if used.background.n_running >= MAX_BACKGROUND:
        raise QueueFull(MAX_BACKGROUND, 1)
    model = used.pool.resolve(asked.fields.model)
    header = Header(model.id, response_id)
    fields = response_fields(asked, header, asked.fields.temperature, asked.fields.top_p)
    queued = ResponseFrame(fields).begun() | {"status": "queued"}
    await used.state.put(
        *(owner, "response", queued),
        parent=asked.body.previous_response_id,
        inputs=items_to_store(asked.body.input, asked.history),
        expires_at=time.time() + used.options.state_days * DAY_S if used.options.state_days else None,
    )

    async def change(**changes: object) -> None:
        def changed(body: Json) -> Json:
            return {**body, **changes} if body["status"] in UNFINISHED else body

        await used.state.update(owner, "response", response_id, changed)

    failures: list[Json] = []

    def failed(status: int, error: Json) -> bytes:
        code = "rate_limit_exceeded" if status == HTTPStatus.TOO_MANY_REQUESTS else "server_error"
        failures.append({"code": code, "message": error["error"]["message"]})
        return ask.words.error(status, error)

    async def generate() -> AsyncIterator[bytes]:
        await change(status="in_progress")
        try:
            async with contextlib.aclosing(detached(request, ask.with_error(failed))) as events:
                async for event in events:
                    yield event
        except Exception as error:  # noqa: BLE001 (before its first event; `error_body` logs what is unexpected)
            yield failed(*error_body(error)[:2])

    async def settle(run: BackgroundRun) -> None:
        if run.is_cancelled:
            await change(status="cancelled")
        elif failures:
            await change(status="failed", error=failures[-1])
        await used.state.attach(owner, response_id, run.packed())

    run = used.background.start(owner, response_id, generate(), settle)
    if asked.fields.stream:
        return event_stream(request, run.read(), headers=ask.headers, ping=lambda: EARLY_PING)
    return json_reply(queued, headers=ask.headers)


@router.post("/v1/responses/input_tokens")
@router.post("/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a body has, without generating."""
    asked, headers = await _read(request)
    return await compute(
        request,
        asked.fields.model,
        lambda model, seen: input_tokens(asked.conversation, model, seen),
        headers,
        asked.conversation.media,
        asked.fields.cache_salt or "",
    )


@router.get("/v1/responses/{response_id}")
@router.get("/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response of this client; with ``stream``, the events of a background response after
    ``starting_after``, and those that follow while it is generated."""
    if request.query_params.get("stream", "false").lower() in ("false", "0", ""):
        return json_reply(await _stored(request, response_id))
    after = _whole_number(request, "starting_after", -1)
    used, owner = services(request), owner_of(request)
    run = used.background.find(owner, response_id)
    if run is not None:
        return event_stream(request, run.read(after), ping=lambda: EARLY_PING)
    response = await _stored(request, response_id)
    data = await used.state.data(owner, response_id)
    if data is None or not response["background"]:
        raise InvalidRequest("stream: only a response that was created with background has stored events", "stream")

    async def events() -> AsyncGenerator[bytes, None]:
        for event in unpacked(data, after):
            yield event

    return event_stream(request, events())


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a stored response of this client. Responses that continue it stay usable."""
    used, owner = services(request), owner_of(request)
    run = used.background.find(owner, response_id)
    if run is not None:
        await run.cancel()
    if not await used.state.remove(owner, "response", response_id):
        raise _not_found(response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
@router.post("/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a background response. One that has ended stays as it is."""
    response = await _stored(request, response_id)
    if not response["background"]:
        raise InvalidRequest("Cannot cancel a synchronous response.", "response_id")
    run = services(request).background.find(owner_of(request), response_id)
    if run is not None:
        await run.cancel()
    return json_reply(await _stored(request, response_id))


@router.get("/v1/responses/{response_id}/input_items")
@router.get("/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """List the items of a response's own input, without those of the responses that it continues."""
    query = ListQuery.of(request)
    await _stored(request, response_id)
    items = await services(request).state.items(owner_of(request), response_id, is_output=False)
    return list_reply(page(items[::-1] if query.newest_first else items, query.after, query.limit))


async def _stored(request: Request, response_id: str) -> Json:
    state, owner = services(request).state, owner_of(request)
    found = await state.get(owner, "response", response_id)
    if found is None:
        raise _not_found(response_id)
    return {**found, "output": await state.items(owner, response_id, is_output=True)}


async def fail_unfinished(state: Objects) -> None:
    """Mark the background responses as failed that an earlier server process left unfinished."""
    error = {"code": "server_error", "message": "the server was restarted before the response was complete"}

    def failed(body: Json) -> Json:
        return {**body, "status": "failed", "error": error}

    for owner, response in await state.with_status("response", *UNFINISHED):
        await state.update(owner, "response", response["id"], failed)


def _connection(request: Request) -> ConnectionMemory:
    """What the request's WebSocket connection remembers; nothing for one over HTTP."""
    kept: dict[str, Any] | None = request.scope.get(CONNECTION)
    memory: ConnectionMemory = ConnectionMemory() if kept is None else kept.setdefault("responses", ConnectionMemory())
    return memory


def _whole_number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name, "")
    if given and not (given.isascii() and given.isdigit() and len(given) < 20):
        raise InvalidRequest(f"{name}: must be a whole number of 0 or more", name)
    return int(given) if given else default


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{short(response_id)}' not found.")
