"""Reads which blocks the loaded models have cached and publishes the changes."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from server.errors import ConfigError, Unavailable
from server.pool.block_events import BlockReport, BlocksRemoved, BlocksStored
from server.pool.state import ModelState

EVERY_S = 0.2
Change = BlocksStored | BlocksRemoved


@dataclass(slots=True)
class _Published:
    """The published cache contents of a model."""

    epoch: str = ""
    hashes: dict[str, set[int]] = field(default_factory=dict)  # by medium

    def follow(self, report: BlockReport | None) -> list[Change]:
        """Return the events to publish. None: the model has no cache any more."""
        changes: list[Change] = []
        epoch = "" if report is None else report.epoch
        if epoch != self.epoch:
            changes += [BlocksRemoved(tuple(sorted(held)), medium) for medium, held in self.hashes.items() if held]
            self.epoch, self.hashes = epoch, {}
        for change in () if report is None else report.changes:
            held = self.hashes.setdefault(change.medium, set())
            if isinstance(change, BlocksStored):
                held.update(change.hashes)
            else:
                held.difference_update(change.hashes)
            changes.append(change)
        return changes


class KvEvents:
    """Publishes at `endpoint` under the name `pod`, by default the host name. Raises ConfigError if ZMQ is not
    installed.
    """

    def __init__(self, endpoint: str, replay: str = "", pod: str = "") -> None:
        try:
            from server.telemetry.kv_events.publisher import KvEventPublisher
        except ImportError as error:
            raise ConfigError(f"server.kv_events: {error}; pip install 'llamapool[events]'") from None
        self._open = partial(KvEventPublisher, endpoint, replay, pod or socket.gethostname())
        self.addresses: list[str] = []  # the bound address, once there is one

    async def follow(self, states: Callable[[], Sequence[ModelState]]) -> None:
        """Publish until cancelled. Raises ConfigError where an address can't be had."""
        publisher = self._open()
        self.addresses = publisher.addresses
        published: dict[str, _Published] = {}
        try:
            while True:
                for state in states():
                    model = state.spec.id
                    if model not in published:
                        published[model] = _Published()
                        await publisher.clear(model)
                    changes = published[model].follow(await _report(state))
                    if changes:
                        await publisher.publish(model, changes)
                await asyncio.sleep(EVERY_S)
        finally:
            for model in published:
                await publisher.clear(model)
            await publisher.close()


async def _report(state: ModelState) -> BlockReport | None:
    if state.loaded is None or state.loaded.generator is None:
        return None
    try:
        return await state.loaded.generator.block_changes()
    except Unavailable:  # its process is being started again
        return None
