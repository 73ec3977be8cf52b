"""Publishes the cached KV blocks of the loaded models to routers. Needs the extra ``llamapool[events]``.

Events go over ZMQ in the format of vLLM (vllm/distributed/kv_events.py), which llm-d's router reads (pkg/kvevents:
zmq_subscriber.go, engineadapter/vllm_adapter.go).

A message has three frames: the topic ``kv@POD@MODEL``, the sequence number (8 bytes, big-endian), and in msgpack
``[unix time, [event, ...]]``. An event is an array that starts with its name. A subscriber that missed messages sends
the first sequence number to the replay address. It receives the messages one by one, then one with an empty last frame.
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgpack
import zmq
import zmq.asyncio

from server.engine.cache.prefix_cache import BLOCK
from server.errors import ConfigError, Unavailable
from server.pool.block_events import BlockReport, BlocksRemoved, BlocksStored
from server.pool.state import ModelState

INTERVAL_S = 0.2
Change = BlocksStored | BlocksRemoved
MAX_REPLAYED = 10_000
"""Number of messages that can be replayed."""
_HWM = 100_000
_END = (-1).to_bytes(8, "big", signed=True)
CLEARED = ["AllBlocksCleared"]


def _frames(topic: bytes, number: int, payload: bytes) -> list[bytes]:
    return [topic, number.to_bytes(8, "big"), payload]


def event_array(change: Change) -> list[object]:
    """Return an event as an array: name, hashes, parent hash, tokens, tokens per block, LoRA id, medium, LoRA name, and
    extra keys of each block.
    """
    if isinstance(change, BlocksRemoved):
        return ["BlockRemoved", list(change.hashes), change.medium]
    event: list[object] = ["BlockStored", list(change.hashes), change.parent, list(change.tokens), BLOCK]
    event += [None, change.medium, None]
    if change.salt:
        event.append([[change.salt], *([None] * (len(change.hashes) - 1))])
    return event


@dataclass(slots=True)
class _Published:
    """The published cache contents of a model."""

    epoch: str = ""
    hashes: dict[str, set[int]] = field(default_factory=dict)  # by medium

    def follow(self, report: BlockReport | None) -> list[Change]:
        """Return the events to publish. `report` None: the model is unloaded."""
        changes: list[Change] = []
        epoch = "" if report is None else report.epoch
        if epoch != self.epoch:
            changes += [BlocksRemoved(tuple(sorted(old)), medium) for medium, old in self.hashes.items() if old]
            self.epoch, self.hashes = epoch, {}
        for change in () if report is None else report.changes:
            hashes = self.hashes.setdefault(change.medium, set())
            if isinstance(change, BlocksStored):
                hashes.update(change.hashes)
            else:
                hashes.difference_update(change.hashes)
            changes.append(change)
        return changes


class KvEvents:
    """Publishes under the name `pod`, by default the host name. Used on the event loop.

    As in vLLM, an `endpoint` like ``tcp://*:5557`` is bound, and one like ``tcp://host:5557`` is connected to. `replay`
    is bound; "" = no replay. ``addresses``: the bound addresses, with the actual port if any port was requested. Raises
    ConfigError if an address cannot be bound.
    """

    def __init__(self, endpoint: str, replay: str = "", pod: str = "") -> None:
        self._context = zmq.asyncio.Context()
        try:
            self._events, self._requests, self.addresses = _sockets(self._context, endpoint, replay)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            message = f"server.kv_events: {endpoint} {replay}: {error}; use a free address such as tcp://*:5557"
            raise ConfigError(message) from None
        self._pod = pod or socket.gethostname()
        self._n = 0
        self._recent: deque[tuple[bytes, int, bytes]] = deque(maxlen=MAX_REPLAYED)

    async def follow(self, states: Callable[[], Sequence[ModelState]]) -> None:
        """Publish until cancelled."""
        answering = asyncio.create_task(self._answer(self._requests), name="kv events: replay")
        published: dict[str, _Published] = {}
        try:
            while True:
                for state in states():
                    model = state.spec.id
                    if model not in published:
                        published[model] = _Published()
                        await self._send(model, [CLEARED])
                    changes = published[model].follow(await _report(state))
                    if changes:
                        await self._send(model, [event_array(change) for change in changes])
                await asyncio.sleep(INTERVAL_S)
        finally:
            for model in published:
                await self._send(model, [CLEARED])
            answering.cancel()
            try:
                await asyncio.wait((answering,))
            finally:
                self._context.destroy(linger=100)  # milliseconds, for unsent messages

    async def _send(self, model: str, changes: Sequence[Sequence[object]]) -> None:
        topic = f"kv@{self._pod}@{model}".encode()
        message = (topic, self._n, msgpack.packb([time.time(), changes]))  # type: ignore[no-untyped-call]
        self._n += 1
        self._recent.append(message)
        await self._events.send_multipart(_frames(*message))

    async def _answer(self, requests: zmq.asyncio.Socket) -> None:
        """Answer replay requests until cancelled."""
        while True:
            frames = await requests.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            subscriber, delimiter, first = frames[0], frames[1], int.from_bytes(frames[2], "big")
            for message in list(self._recent):
                if message[1] >= first:
                    await requests.send_multipart([subscriber, delimiter, *_frames(*message)])
            await requests.send_multipart([subscriber, delimiter, b"", _END, b""])


def _sockets(
    context: zmq.asyncio.Context, endpoint: str, replay: str
) -> tuple[zmq.asyncio.Socket, zmq.asyncio.Socket, list[str]]:
    """Return the socket for events, the one for replay requests, and the bound addresses."""
    events, requests = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    events.set_hwm(_HWM)
    events.linger = requests.linger = 0
    listens = "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc:")
    (events.bind if listens else events.connect)(endpoint)
    if replay:
        requests.bind(replay)
    bound = [events, requests] if replay else [events]
    return events, requests, [each.getsockopt_string(zmq.LAST_ENDPOINT) for each in bound]


async def _report(state: ModelState) -> BlockReport | None:
    if state.loaded is None or state.loaded.generator is None:
        return None
    try:
        return await state.loaded.generator.block_changes()
    except Unavailable:  # the model's process is restarting
        return None
