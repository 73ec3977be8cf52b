"""What a server is asked first: that it answers, which model it has, and how that cuts words into tokens."""

import asyncio
from typing import Any

from server.bench.errors import BadReply, UnknownModel
from server.bench.prompts import Words, fit
from server.bench.session import Session
from server.bench.target import Target

_N_WORDS = 64


async def find_model(target: Target, limit_s: float) -> str:
    """The only model of the server. Raises `BenchError`, `UnknownModel` with the names when there are several."""
    try:
        listed = await Session(target, limit_s=limit_s).get("/v1/models")
    except UnknownModel as error:
        raise UnknownModel(f"{target.url} has no list of models; name one with --model") from error
    names = _names(listed.get("data"))
    if len(names) != 1:
        raise UnknownModel(f"name one of the server's models with --model: {', '.join(names) or 'it lists none'}")
    return names[0]


def _names(data: Any) -> list[str]:
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


async def words_per_word(session: Session) -> float:
    """`prompts.fit` of the model, from a prompt that is sent; also the first request, which may load it.

    Raises `BenchError`: a model or an address that does not work is found out here.
    """
    body = session.body([Words("fit").text(_N_WORDS)], 1, stream=False)
    try:
        (record,) = await session.requests([body], 1)
    except UnknownModel as error:
        hint = "" if session.chat else "; a server without /v1/completions needs --chat"
        raise UnknownModel(f"{error} (model '{session.model}', {session.path}{hint})") from error
    except BadReply as error:
        raise BadReply(f"{error} (asked {session.path} with {sorted(body)}; --body changes the fields)") from error
    return 1.0 if record.n_prompt is None else fit(_N_WORDS, record.n_prompt)


def prepare(session: Session) -> float:
    """`words_per_word`, on an event loop of its own."""
    return asyncio.run(words_per_word(session))
