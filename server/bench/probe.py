"""What a server is asked first: that it answers, which model it has, what it takes, how it cuts words into tokens."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from server.bench.errors import BadReply, UnknownModel
from server.bench.prompts import RandomText, fit
from server.bench.session import ModelClient
from server.bench.target import Target

_N_WORDS = 64


async def find_model(target: Target, limit_s: float) -> str:
    """The only model of the server. Raises `BenchError`, `UnknownModel` with the names when there are several."""
    try:
        listed = await ModelClient(target, limit_s=limit_s).get("/v1/models")
    except UnknownModel as error:
        raise UnknownModel(f"{target.url} has no list of models; name one with --model") from error
    names = _names(listed.get("data"))
    if len(names) != 1:
        raise UnknownModel(f"name one of the server's models with --model: {', '.join(names) or 'it lists none'}")
    return names[0]


def _names(data: Any) -> list[str]:
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


async def suited(session: ModelClient) -> tuple[ModelClient, float, list[str]]:
    """The session as the server takes it, its `words_per_word`, and what had to be changed for that, in words.

    A server may be without ``/v1/completions``, and may refuse ``ignore_eos``, which OpenAI's API does not have. Raises
    what the session raised as it was given, when none works.
    """
    refusal: UnknownModel | BadReply | None = None
    for attempt, changes in _attempts(session):
        try:
            return attempt, await words_per_word(attempt), changes
        except (UnknownModel, BadReply) as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _attempts(session: ModelClient) -> Iterator[tuple[ModelClient, list[str]]]:
    freely = "without ignore_eos: replies may be shorter than asked for"
    as_chat = "with /v1/chat/completions"
    open_ended = "ignore_eos" not in session.extra
    ways = [session] if session.chat else [session, session.as_chat()]
    for way in ways:
        yield way, [as_chat] * (way is not session)
    for way in ways if open_ended else []:
        without = replace(way, extra={**way.extra, "ignore_eos": None})
        yield without, [as_chat] * (way is not session) + [freely]


async def words_per_word(session: ModelClient) -> float:
    """`prompts.fit` of the model, from a prompt that is sent; also the first request, which may load it.

    Raises `BenchError`: a model or an address that does not work is found out here.
    """
    body = session.body([RandomText("fit").text(_N_WORDS)], 1, stream=False)
    try:
        (record,) = await session.requests([body], 1)
    except UnknownModel as error:
        hint = "" if session.chat else "; a server without /v1/completions needs --chat"
        raise UnknownModel(f"{error} (model '{session.model}', {session.path}{hint})") from error
    except BadReply as error:
        raise BadReply(f"{error} (asked {session.path} with {sorted(body)}; --body changes the fields)") from error
    return 1.0 if record.n_prompt is None else fit(_N_WORDS, record.n_prompt)


def prepare(session: ModelClient) -> tuple[ModelClient, float, list[str]]:
    """`suited`, on an event loop of its own."""
    return asyncio.run(suited(session))
