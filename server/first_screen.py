"""What the log says once everything that loads at start is loaded: where the server is, what it serves, what that takes
of which memory and why, and what to try. A few lines, without time and level on a terminal."""

import logging
from collections.abc import Mapping, Sequence

from server import __version__
from server.logs import BARE
from server.pool.footprint import Memory, readable
from server.pool.load.lifecycle import described
from server.pool.pool import Pool
from server.pool.state import ModelFacts, ModelState, Status

logger = logging.getLogger(__name__)

_MOST_MODELS = 12
_HELLO = """'{"messages": [{"role": "user", "content": "Hello!"}]}'"""
_UNIX = "http+unix://"
_WIDTH = 13


async def show_first_screen(pool: Pool, addresses: Sequence[str], *, has_keys: bool) -> None:
    """Wait for the loads of the start, then log the screen; never where the server stops before."""
    with pool.subscribe() as events:
        while pool.starting:
            try:
                await anext(events)
            except StopAsyncIteration:
                return
    memory = await pool.memory()
    for line in first_screen(pool.states(), memory, pool.budget_of(memory), addresses, has_keys=has_keys):
        logger.info("%s", line, extra={BARE: True})


def first_screen(
    states: Sequence[ModelState],
    memory: Mapping[str, Memory],
    budget: Mapping[str, int],
    addresses: Sequence[str],
    *,
    has_keys: bool,
) -> list[str]:
    """The lines."""
    shown = sorted(states, key=lambda state: state.facts is None)[:_MOST_MODELS]
    lines = [f"Llamapool {__version__}{' at ' if addresses else ''}{', '.join(addresses)}"]
    for state in shown:
        lines += [_row(state.spec.id if i == 0 else "", text) for i, text in enumerate(_about(state))]
    if len(states) > len(shown):
        lines.append(_row("", f"and {len(states) - len(shown)} more, loaded when they are asked for"))
    lines += [_row("memory" if i == 0 else "", text) for i, text in enumerate(_free(memory, budget))]
    if addresses:
        lines.append(_row("pages", f"{addresses[0]}/docs" if not addresses[0].startswith(_UNIX) else "/docs"))
        lines.append(_row("try", _curl(states, addresses[0], has_keys=has_keys)))
    return lines


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def _about(state: ModelState) -> list[str]:
    if state.status is Status.FAILED:
        return [f"can't be loaded: {state.failure}"]
    if state.facts is None:
        return ["loaded when it is asked for"]
    notes = state.facts.fit.notes if state.facts.fit else ()
    return [described(state.facts), *_parts(state.facts), *notes]


def _parts(facts: ModelFacts) -> list[str]:
    return [
        f"{name}: weights {readable(taken.weights)}, context {readable(taken.context)}, "
        f"computing {readable(taken.compute)}"
        for name, taken in facts.footprint.items()
    ]


def _free(memory: Mapping[str, Memory], budget: Mapping[str, int]) -> list[str]:
    return [
        f"{name}: {readable(now.free)} of {readable(now.total)} are free"
        + (f"; models may take {readable(budget[name])} together" if name in budget else "")
        for name, now in memory.items()
    ]


def _curl(states: Sequence[ModelState], address: str, *, has_keys: bool) -> str:
    """For the model that a chat without a name is for, or the first that generates."""
    able = [state for state in states if state.spec.configured_for("generate")]
    name = f'{{"model": "{able[0].spec.id}", ' if len(able) > 1 else "{"
    body = _HELLO.replace("{", name, 1)
    key = ' -H "Authorization: Bearer $KEY"' if has_keys else ""
    socket = ""
    if address.startswith(_UNIX):
        socket, address = f" --unix-socket {address.removeprefix(_UNIX)}", "http://localhost"
    return f"curl{socket} {address}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {body}"
