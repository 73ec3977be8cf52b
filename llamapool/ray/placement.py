"""Choose the replica where a request is expected to cost least. Pure.

The front has no tokenizer, so the unit of cost is a character of the body's text, about a quarter of a token. The cost
of a request at a replica has four parts. Text after the prefix that the replica has received counts twice, because its
prefill also delays other requests. Running streams slow the request down. If all slots are busy, it waits for one. If
the model is not in memory, it waits for the load. The engine chooses between instances by the same rule
(`preferred_instance`).
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

PIECE = 64
"""Characters per hash: prefixes are compared in pieces of this length."""
MAX_PIECES = 1 << 17  # stored: 8 million characters
STREAM = 256.0
"""Cost of each running stream, as `server.engine.queue.LOAD_TOKENS`."""
TURN = 4096.0
"""Estimated cost of another request in a slot: prompt and reply of a chat."""
LOAD = 1 << 18
"""Cost of loading a model: about that of a prompt of 64k tokens."""
_MAX_TEXT = 1 << 20  # characters of a body that count
_PROMPT = ("tools", "instructions", "system", "messages", "input", "prompt", "input_prefix", "text")
"""Body fields that contain parts of the prompt, in approximately the order of the prompt."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a request. ``replica``: the only replica that may answer, "" = any."""

    model: str = ""
    text: str = ""
    replica: str = ""


def aim_of(body: bytes, replica: str = "") -> Aim:
    """Return the target of a request with this body. The replica rejects bodies that are not JSON."""
    try:
        fields = json.loads(body) if body else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return Aim(replica=replica)
    salt = fields.get("cache_salt")
    parts = [salt, *(fields[name] for name in _PROMPT if fields.get(name))]
    text = json.dumps([part for part in parts if part], ensure_ascii=False)[:_MAX_TEXT]
    model = fields.get("model")
    return Aim(model if isinstance(model, str) else "", text, replica)


def pieces(aim: Aim) -> list[int]:
    """Return the hash of the prefix up to the end of each whole piece. Hashes are valid in this process only."""
    prefix_hash, hashes = hash(aim.model), []
    for end in range(PIECE, len(aim.text) + 1, PIECE):
        prefix_hash = hash((prefix_hash, aim.text[end - PIECE : end]))
        hashes.append(prefix_hash)
    return hashes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica: its current requests, its slots, and the names of its loaded models."""

    id: str
    n_requests: int = 0
    n_slots: int = 1
    models: frozenset[str] = frozenset()


class Placement:
    """The prefixes that each replica has received.

    The least recently used pieces are dropped first, and the end of a text before its start.
    """

    def __init__(self, max_pieces: int = MAX_PIECES) -> None:
        self._received: OrderedDict[int, set[str]] = OrderedDict()  # replicas by hash of a piece
        self._n_sent: dict[str, int] = {}
        self._latest: dict[str, str] = {}  # by model: the replica of its last request, where it is or will be loaded
        self._max_pieces = max_pieces

    def sent(self, aim: Aim, replica: str) -> None:
        """Record that the request went to this replica."""
        if aim.model:
            self._latest[aim.model] = replica
        self._n_sent[replica] = self._n_sent.get(replica, 0) + 1
        for piece in reversed(pieces(aim)):
            self._received.setdefault(piece, set()).add(replica)
            self._received.move_to_end(piece)
        while len(self._received) > self._max_pieces:
            self._received.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Remove all other replicas and their prefixes."""
        gone = self._n_sent.keys() - set(replicas)
        if gone:
            self._n_sent = {id_: n for id_, n in self._n_sent.items() if id_ not in gone}
            self._latest = {model: id_ for model, id_ in self._latest.items() if id_ not in gone}
            remaining = ((piece, ids - gone) for piece, ids in self._received.items())
            self._received = OrderedDict((piece, ids) for piece, ids in remaining if ids)

    def known(self, aim: Aim, replicas: Iterable[str]) -> Mapping[str, int]:
        """Return the length of the text's prefix that each replica has received, in characters."""
        known = dict.fromkeys(replicas, 0)
        matching = set(known)
        for i, piece in enumerate(pieces(aim)):
            matching &= self._received.get(piece, set())
            if not matching:
                break
            for id_ in matching:
                known[id_] = (i + 1) * PIECE
        return known

    def order(self, aim: Aim, candidates: Sequence[Candidate]) -> list[str]:
        """Return ids by increasing cost, then by requests sent so far. Empty if no candidate may get the request."""
        if aim.replica:
            return [one.id for one in candidates if one.id == aim.replica]
        known = self.known(aim, [one.id for one in candidates])

        def cost(one: Candidate) -> tuple[float, int, str]:
            n_new = len(aim.text) - known[one.id]
            turns = max(one.n_requests + 1 - one.n_slots, 0) / one.n_slots
            is_loaded = not aim.model or aim.model in one.models or self._latest.get(aim.model) == one.id
            return (
                2 * n_new + one.n_requests * STREAM + turns * TURN + (0 if is_loaded else LOAD),
                self._n_sent.get(one.id, 0),
                one.id,
            )

        return [one.id for one in sorted(candidates, key=cost)]
