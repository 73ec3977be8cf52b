"""``/v1/responses`` (OpenAI): create over HTTP or WebSocket, count, compact, and stored responses."""

import asyncio
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import Response

from server.dialects.chat.parse import input_tokens
from server.dialects.responses.compaction import compacted, compaction_body
from server.dialects.responses.parse import RESPONSES, ResponsesBody, new_response_id
from server.errors import InvalidRequest
from server.routes.openapi import computes, describe
from server.serving import background
from server.serving.generate import Exchange, compute, respond
from server.serving.responses import read_response, store_of, stored_response
from server.serving.services import Services, whole_number
from server.serving.stored import find_object, list_items, object_reply, remove_object
from server.state.objects import UNFINISHED
from server.transport.errors import json_reply
from server.transport.websocket import EventSocket

router = APIRouter(tags=["responses"])


@router.post("/v1/responses")
@router.post("/responses")
@computes("$OpenAIResponse", ResponsesBody, {"input": "Hi", "max_output_tokens": 16}, "$ResponseEvent")
async def create_response(request: Request) -> Response:
    """Create a response in OpenAI's format, with llama.cpp's sampling fields."""
    parsed = await read_response(request)
    parsed.approved_calls()  # an impossible call is an error before the reply starts
    parsed = replace(parsed, response_id=new_response_id(), store=store_of(request, parsed))
    if parsed.options.background:
        return await background.start(request, parsed)
    return await respond(request, RESPONSES, parsed)


@router.websocket("/v1/responses")
@router.websocket("/responses")
async def response_socket(socket: WebSocket) -> None:
    """Create a response for each message, as POST to the same path."""
    app: Services = socket.app.state.services
    task = asyncio.current_task()
    assert task is not None
    app.sockets.add(task)
    task.add_done_callback(app.sockets.discard)
    await EventSocket(socket, app.draining).serve()


@router.post("/v1/responses/input_tokens")
@router.post("/responses/input_tokens")
@computes("$InputTokens", ResponsesBody, {"input": "Hi"})
async def count_input_tokens(request: Request) -> Response:
    """Return the number of prompt tokens of a body without generating."""
    parsed = await read_response(request)
    return await compute(request, parsed, partial(input_tokens, parsed.conversation), parsed.media)


@router.post("/v1/responses/compact")
@router.post("/responses/compact")
@computes("$CompactedResponse", ResponsesBody, {"input": "Hi"})
async def compact_response(request: Request) -> Response:
    """Summarize a conversation as one opaque item, which later requests send instead of it."""
    parsed = await read_response(request, compaction_body)
    exchange = Exchange(request, RESPONSES, parsed)
    response = await exchange.collect()
    item = compacted(response, messages=parsed.conversation.messages, cipher=parsed.cipher)
    return json_reply(item, headers=exchange.headers)


@router.get("/v1/responses/{response_id}")
@router.get("/responses/{response_id}")
@describe("$OpenAIResponse", errors=(404,))
async def get_response(request: Request, response_id: str) -> Response:
    """Return a stored response of this client.

    With ``stream`` return the events of a background response after ``starting_after``, until it ends.
    """
    if request.query_params.get("stream", "false").lower() in ("false", "0", ""):
        return await object_reply(request, await stored_response(request, response_id))
    return await background.replay(request, response_id, whole_number(request, "starting_after", -1))


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}")
@describe("$Deleted", errors=(400, 404))
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a stored response of this client. Responses that continue it are kept."""
    await _cancel(request, response_id)
    await remove_object(request, "response", response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
@router.post("/responses/{response_id}/cancel")
@describe("$OpenAIResponse", errors=(400, 404))
async def cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a background response. A response that has ended is not changed."""
    response = await find_object(request, "response", response_id)
    if not response["background"]:
        raise InvalidRequest("Cannot cancel a synchronous response.", "response_id")
    await _cancel(request, response_id)
    return await object_reply(request, await stored_response(request, response_id))


async def _cancel(request: Request, response_id: str) -> None:
    """Stop a response if it is in the background. Raises `NotFound`, and `InvalidRequest` if another server runs it."""
    if not await background.cancel(request, response_id):
        response = await find_object(request, "response", response_id)
        if response["status"] in UNFINISHED["response"]:
            raise InvalidRequest(background.ELSEWHERE, "response_id")


@router.get("/v1/responses/{response_id}/input_items")
@router.get("/responses/{response_id}/input_items")
@describe("$ObjectList", errors=(400, 404))
async def list_input_items(request: Request, response_id: str) -> Response:
    """List the input items of a response, without those of the responses that it continues."""
    await find_object(request, "response", response_id)
    return await list_items(request, response_id, is_output=False)
