"""``POST /v1/chat/completions/control``: act on a chat while its reply is being written."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.routes.services import caller_of, services
from server.transport.access.keys import ANYBODY
from server.transport.bodies.read import read_json
from server.transport.reply import json_reply
from server.wire.reasoning_control import read_control

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions/control")
async def control(request: Request) -> Response:
    """``{"id": completion, "action": "reasoning_end"}`` ends the thoughts of a chat that was started with
    ``reasoning_control``; ``"cancel"``, which llama-server doesn't have, ends any request: its client gets an error.
    What can't be reached is no error but ``"success": false`` with a message.

    A key reaches what was asked with keys of its name, or all where it sees all.

    Ids are unique in the server, so ``model`` may be left out with several models, too.
    """
    used = services(request)
    wanted = read_control(await read_json(request))
    model = used.pool.resolve(wanted.model).id if wanted.model else None
    act = used.running.cancel if wanted.cancel else used.running.end_reasoning
    caller = caller_of(request) or ANYBODY
    reason = act(wanted.completion_id, model, None if caller.sees_all else caller.owner)
    return json_reply({"success": False, "message": reason} if reason else {"success": True})
