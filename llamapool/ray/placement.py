"""Choose the replica where a request is expected to cost least. Pure.

The front has no tokenizer, so cost is counted in characters of the body's text, about four to a token. What a request
costs at a replica is the sum of four parts. Its text without the prefix that the replica has seen counts twice, because
it delays other requests, too. Running streams slow it down. If every slot is busy, it waits for one. If the model is
not in memory, it waits for the load. The engine chooses between instances by the same rule (`preferred_instance`).
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

PIECE = 64
"""Characters that are known or not known together."""
MOST_PIECES = 1 << 17  # remembered: 8 million characters
STREAM = 256.0
"""Cost of each running stream, as `server.engine.queue.LOAD_TOKENS`."""
TURN = 4096.0
"""Estimated cost of another request in a slot: prompt and reply of a chat."""
LOAD = 1 << 18
"""What loading a model takes, about as long as a prompt of 64k tokens."""
_MOST_TEXT = 1 << 20  # characters that are looked at
_PROMPT = ("tools", "instructions", "system", "messages", "input", "prompt", "input_prefix", "text")
"""Members of a body that a prompt is made of, in the APIs that the server has, in about their order in it."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a request. ``replica``: the only replica that may answer, "" = any."""

    model: str = ""
    text: str = ""
    replica: str = ""


def aim_of(body: bytes, replica: str = "") -> Aim:
    """Return the target of a request's body. The replica refuses a body that is no JSON."""
    try:
        read = json.loads(body) if body else None
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        return Aim(replica=replica)
    salt = read.get("cache_salt")
    parts = [salt, *(read[name] for name in _PROMPT if read.get(name))]
    text = json.dumps([part for part in parts if part], ensure_ascii=False)[:_MOST_TEXT]
    model = read.get("model")
    return Aim(model if isinstance(model, str) else "", text, replica)


def pieces(aim: Aim) -> list[int]:
    """Return the hash of the prefix up to the end of each whole piece. Valid in this process only."""
    at, found = hash(aim.model), []
    for end in range(PIECE, len(aim.text) + 1, PIECE):
        at = hash((at, aim.text[end - PIECE : end]))
        found.append(at)
    return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica: requests that it has now, slots for them, and names of the models that are in its memory."""

    id: str
    n_requests: int = 0
    n_slots: int = 1
    models: frozenset[str] = frozenset()


class Placement:
    """The prefixes that each replica has received. The end of a text is dropped before its start, the least recently
    used first."""

    def __init__(self, most: int = MOST_PIECES) -> None:
        self._seen: OrderedDict[int, set[str]] = OrderedDict()  # a piece's hash: replicas that have seen it
        self._n_sent: dict[str, int] = {}
        self._latest: dict[str, str] = {}  # by model: where it is now, or is being loaded
        self._most = most

    def sent(self, aim: Aim, replica: str) -> None:
        """Record that the request went to this replica."""
        if aim.model:
            self._latest[aim.model] = replica
        self._n_sent[replica] = self._n_sent.get(replica, 0) + 1
        for at in reversed(pieces(aim)):
            self._seen.setdefault(at, set()).add(replica)
            self._seen.move_to_end(at)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Remove all other replicas with their prefixes."""
        gone = self._n_sent.keys() - set(replicas)
        if gone:
            self._n_sent = {id_: n for id_, n in self._n_sent.items() if id_ not in gone}
            self._latest = {model: id_ for model, id_ in self._latest.items() if id_ not in gone}
            self._seen = OrderedDict((at, left) for at, had in self._seen.items() if (left := had - gone))

    def known(self, aim: Aim, replicas: Iterable[str]) -> Mapping[str, int]:
        """Return the number of characters of the text, from its start, that each replica has seen."""
        known = dict.fromkeys(replicas, 0)
        having = set(known)
        for i, at in enumerate(pieces(aim)):
            having &= self._seen.get(at, set())
            if not having:
                break
            for id_ in having:
                known[id_] = (i + 1) * PIECE
        return known

    def order(self, aim: Aim, candidates: Sequence[Candidate]) -> list[str]:
        """Return ids, the cheapest first; of equals the one that was sent less. Empty if it may go to none of them."""
        if aim.replica:
            return [one.id for one in candidates if one.id == aim.replica]
        known = self.known(aim, [one.id for one in candidates])

        def cost(one: Candidate) -> tuple[float, int, str]:
            own = len(aim.text) - known[one.id]
            turns = max(one.n_requests + 1 - one.n_slots, 0) / one.n_slots
            there = not aim.model or aim.model in one.models or self._latest.get(aim.model) == one.id
            return (
                2 * own + one.n_requests * STREAM + turns * TURN + (0 if there else LOAD),
                self._n_sent.get(one.id, 0),
                one.id,
            )

        return [one.id for one in sorted(candidates, key=cost)]
