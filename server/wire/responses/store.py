"""Responses that clients may name again: ``previous_response_id``, ``GET /v1/responses/{id}``, references to items.

In memory only and bounded by count and bytes; the least recently used go first. Nothing survives a restart. Every
response belongs to the client that asked for it, and no other one finds it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import orjson
from pydantic import TypeAdapter

from server.conversation.conversation import Message
from server.wire.common import Json

_MESSAGES = TypeAdapter(list[Message])
MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    """As JSON, so that its size is known and small."""

    reply: bytes
    messages: bytes
    item_ids: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        return len(self.reply) + len(self.messages)


class ResponseStore:
    """The responses of all clients. Safe to use from any thread."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[bytes, str], _Entry] = OrderedDict()
        self._items: dict[tuple[bytes, str], str] = {}  # (owner, item id): the response it is in
        self.n_bytes = 0
        self._lock = RLock()

    @property
    def n_responses(self) -> int:
        """How many are kept."""
        return len(self._entries)

    def of(self, owner: bytes, connection: "ResponseStore | None" = None) -> "ClientResponses":
        """One client's responses; `owner` is anything that tells clients apart.

        `connection`: those that are not stored, of a connection that remembers them while it is open.
        """
        return ClientResponses(self, owner, connection)

    def find(self, owner: bytes, response_id: str) -> _Entry | None:
        """The entry, which counts as used now."""
        with self._lock:
            entry = self._entries.get((owner, response_id))
            if entry is not None:
                self._entries.move_to_end((owner, response_id))
            return entry

    def response_with(self, owner: bytes, item_id: str) -> str | None:
        """The id of the response whose output has that item."""
        return self._items.get((owner, item_id))

    def put(self, owner: bytes, response_id: str, entry: _Entry) -> bool:
        """Keep it and drop the least recently used that no longer fit; False when it is too large by itself."""
        if entry.n_bytes > self._max_bytes:
            return False
        with self._lock:
            self._entries[owner, response_id] = entry
            self._items |= {(owner, item_id): response_id for item_id in entry.item_ids}
            self.n_bytes += entry.n_bytes
            while self.n_bytes > self._max_bytes or len(self._entries) > self._max_responses:
                self.remove(*next(iter(self._entries)))
        return True

    def remove(self, owner: bytes, response_id: str) -> bool:
        """Forget it; False when there is none."""
        with self._lock:
            entry = self._entries.pop((owner, response_id), None)
            if entry is None:
                return False
            self.n_bytes -= entry.n_bytes
            for item_id in entry.item_ids:
                del self._items[owner, item_id]
        return True


@dataclass(frozen=True, slots=True)
class ClientResponses:
    """The responses that one client may see."""

    _store: ResponseStore
    _owner: bytes
    _connection: ResponseStore | None = None

    def reply(self, response_id: str) -> Json | None:
        """The response object, as it was answered."""
        entry = self._found(response_id)
        return None if entry is None else _loaded(entry.reply)

    def messages(self, response_id: str) -> list[Message] | None:
        """The conversation up to and with the response, without its instructions."""
        entry = self._found(response_id)
        return None if entry is None else _MESSAGES.validate_json(entry.messages)

    def item(self, item_id: str) -> Json | None:
        """An output item of any of the responses."""
        found = (store.response_with(self._owner, item_id) for store in self._stores)
        response_id = next(filter(None, found), None)
        if response_id is None:
            return None
        reply = self.reply(response_id)
        return None if reply is None else next((item for item in reply["output"] if item["id"] == item_id), None)

    @property
    def remembers(self) -> bool:
        """Whether responses are kept that are not to be stored."""
        return self._connection is not None

    def remember(self, reply: Json, messages: Sequence[Message]) -> bool:
        """Keep a response for the connection alone; False, since it is not stored."""
        if self._connection is not None:
            self._connection.put(self._owner, reply["id"], _entry(reply, messages))
        return False

    @property
    def _stores(self) -> tuple[ResponseStore, ...]:
        return (self._store,) if self._connection is None else (self._connection, self._store)

    def _found(self, response_id: str) -> _Entry | None:
        return next(filter(None, (store.find(self._owner, response_id) for store in self._stores)), None)

    def keep(self, reply: Json, messages: Sequence[Message]) -> bool:
        """Store a finished response; False when it is larger than the whole store may be."""
        return self._store.put(self._owner, reply["id"], _entry(reply, messages))

    def remove(self, response_id: str) -> bool:
        """Forget a response; False when there is none."""
        return self._store.remove(self._owner, response_id)


def _entry(reply: Json, messages: Sequence[Message]) -> _Entry:
    return _Entry(orjson.dumps(reply), orjson.dumps(messages), tuple(item["id"] for item in reply["output"]))


def _loaded(raw: bytes) -> Any:
    return orjson.loads(raw)
