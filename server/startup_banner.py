"""Logs the startup banner after the models that load at start: addresses, models with their memory, a command to try.

On a terminal its lines have no time and level, and loads and downloads have progress bars instead of log lines.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from server import __version__
from server.logs import BARE, on_terminal
from server.pool.events import DownloadProgress, LoadProgress, Subscription
from server.pool.memory import Memory, readable
from server.pool.pool import Pool
from server.pool.scheduler import described
from server.pool.spec import Task
from server.pool.state import ModelState, Status

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger(__name__)

_MOST_MODELS = 12
_TRIED: tuple[tuple[Task, str, str], ...] = (
    ("generate", "chat/completions", '"messages": [{"role": "user", "content": "Hello!"}]'),
    ("embed", "embeddings", '"input": "Hello!"'),
    ("rerank", "rerank", '"query": "Hello!", "documents": ["Hi", "Bye"]'),
)
"""What a model can do, where, and the body."""
_UNIX = "+unix://"
_WIDTH = 13


async def show_banner(
    pool: Pool, addresses: Sequence[str], prefix: str, draining: asyncio.Event, *, has_keys: bool, has_page: bool
) -> None:
    """Wait for the loads of the start, then log the banner, unless the server stops before."""
    with pool.subscribe() as events:
        while pool.starting:
            try:
                await anext(events)
            except StopAsyncIteration:
                return
    if draining.is_set():  # loads that are cancelled have ended, too
        return
    memory = await pool.memory()
    budget = pool.budget or pool.limits.budget.limits(memory)  # the latter before the first measurement
    for line in banner_lines(pool.states(), memory, budget, addresses, prefix, has_keys=has_keys, has_page=has_page):
        logger.info("%s", line, extra={BARE: True})


def banner_lines(
    states: Sequence[ModelState],
    memory: Mapping[str, Memory],
    budget: Mapping[str, int],
    addresses: Sequence[str],
    prefix: str,
    *,
    has_keys: bool,
    has_page: bool,
) -> list[str]:
    """Return the lines of the banner. `addresses` end with the API's `prefix`. `has_page`: a web UI is at ``/``."""
    shown = sorted(states, key=lambda state: state.facts is None)[:_MOST_MODELS]
    lines = [f"Llamapool {__version__}{' at ' if addresses else ''}{', '.join(addresses)}"]
    for state in shown:
        lines += [_row(state.spec.id if i == 0 else "", text) for i, text in enumerate(_about(state))]
    if len(states) > len(shown):
        lines.append(_row("", f"and {len(states) - len(shown)} more, loaded at their first request"))
    for i, (name, now) in enumerate(memory.items()):
        models = f"; models may take {readable(budget[name])} together" if name in budget else ""
        text = f"{name}: {readable(now.free)} of {readable(now.total)} are free{models}"
        lines.append(_row("memory" if i == 0 else "", text))
    if addresses:
        base = prefix if _UNIX in addresses[0] else addresses[0]
        pages = [f"{base}/"] * has_page + [f"{base}/docs (the API)"]
        lines.append(_row("pages", ", ".join(pages)))
        lines += [_row("try", text) for text in _curl(states, addresses[0], prefix, has_keys=has_keys)]
    return lines


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def _about(state: ModelState) -> list[str]:
    facts = state.facts
    if state.status is Status.FAILED:
        return [f"can't be loaded: {state.failure}"]
    if facts is None:
        return ["loaded at its first request"]
    parts = [
        f"{name}: weights {readable(taken.weights)}, context {readable(taken.context)}, "
        f"computing {readable(taken.compute)}"
        for name, taken in facts.footprint.items()
    ]
    return [described(facts), *parts, *(facts.fit.notes if facts.fit else ())]


def _curl(states: Sequence[ModelState], address: str, prefix: str, *, has_keys: bool) -> list[str]:
    """Return a curl command for the first loaded (or loadable) model that generates, embeds or ranks; [] if all have
    failed."""
    working = sorted((state for state in states if not state.failed), key=lambda state: state.loaded is None)
    able = [(state, path, body) for task, path, body in _TRIED for state in working if _can(state, task)]
    if not able:
        return []
    state, path, body = able[0]
    name = f'"model": "{state.spec.id}", ' if len(states) > 1 else ""
    key = ' -H "Authorization: Bearer $KEY"' if has_keys else ""
    socket = ""
    if _UNIX in address:
        scheme, _, place = address.partition(_UNIX)
        socket, address = f" --unix-socket {place.removesuffix(prefix)}", f"{scheme}://localhost{prefix}"
    return [f"curl{socket} {address}/v1/{path}{key} -H 'Content-Type: application/json' -d '{{{name}{body}}}'"]


def _can(state: ModelState, task: Task) -> bool:
    """Return whether settings and model allow the task."""
    if task == "generate":
        return state.generates
    return state.embeds and state.spec.configured_for("rerank") == (task == "rerank")


LINE_INTERVAL_S = 5.0  # between two log lines of one load or download


async def show_load_progress(events: Subscription, clock: Callable[[], float] = time.monotonic) -> None:
    """Draw a bar for each load and download until the pool closes; log lines if stderr is no terminal."""
    bars: dict[str, tqdm[NoReturn]] = {}
    logged_at: dict[str, float] = {}
    with events, contextlib.ExitStack() as stack:
        async for event in events:
            if not isinstance(event, LoadProgress | DownloadProgress):
                logged_at.pop(event.model, None)
                if event.model in bars:
                    bars.pop(event.model).close()
            elif on_terminal():
                _draw(event, bars, stack)
            elif (now := clock()) - logged_at.setdefault(event.model, now) >= LINE_INTERVAL_S:
                logged_at[event.model] = now
                if isinstance(event, LoadProgress):
                    logger.info("loading '%s': %d%%", event.model, round(event.value * 100))
                else:
                    logger.info("fetching '%s': %d of %d MiB", event.model, event.done >> 20, event.total >> 20)


def _draw(
    event: LoadProgress | DownloadProgress, bars: "dict[str, tqdm[NoReturn]]", stack: contextlib.ExitStack
) -> None:
    from tqdm import tqdm  # only a terminal needs it

    tqdm.monitor_interval = 0  # every update is an event: tqdm's own thread is not needed
    loads = isinstance(event, LoadProgress)
    if event.model not in bars:
        what, unit = ("loading", "%") if loads else ("fetching", "B")
        bars[event.model] = bar = tqdm(desc=f"{what} {event.model}", unit=unit, unit_scale=not loads, leave=False)
        stack.callback(bar.close)
    bar = bars[event.model]
    bar.n, bar.total = (round(event.value * 100), 100) if isinstance(event, LoadProgress) else (event.done, event.total)
    bar.refresh()
