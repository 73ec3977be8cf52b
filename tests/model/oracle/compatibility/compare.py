"""`compare`: send a row to both servers and return the differences."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.model.oracle.comparison import Pair, rounded, shape_differences
from tests.model.oracle.compatibility.rows import MARKER, Row
from tests.model.oracle.conftest import Start, start_pair
from tests.support.ggufs import BERT, BERT_RERANKER, PLAIN, REPO_FIM, gguf_file, lora_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.real_server import Reply

TOLERANCE = 1e-3  # of log probabilities, and of the components of normalized vectors


@dataclass(frozen=True, slots=True)
class Result:
    """The status codes of both servers for a row, and the differences of the replies as text."""

    row: Row
    ours: int
    theirs: int
    differences: tuple[str, ...]


@contextmanager
def servers(folder: Path) -> Iterator[Mapping[str, Pair]]:
    """Start all pairs of servers. Yields them by the name in `Row.server`."""
    lora, projector = str(lora_file(folder, "lora")), str(projector_file(folder, TinyProjector("mlp")))
    for name in ("ours", "theirs"):
        (folder / name).mkdir()
    flags = ("--lora", lora, "--slot-save-path", folder / "ours", "--props")
    params = {"lora_adapters": [lora], "slot_save_path": f"{folder / 'theirs'}/", "endpoint_props": True}
    reranking = {"embedding": True, "pooling_type": 4}
    with ExitStack() as stack:
        start: Start = partial(start_pair, stack, n_ctx=2048, n_parallel=4, environment={"LLAMA_MEDIA_MARKER": MARKER})
        yield {
            "generation": start(gguf_file(folder, REPO_FIM), flags=flags, params=params),
            "embedding": start(gguf_file(folder, BERT), flags=("--embedding",), params={"embedding": True}),
            "reranking": start(gguf_file(folder, BERT_RERANKER), flags=("--reranking",), params=reranking),
            "vision": start(gguf_file(folder, PLAIN), flags=("--mmproj", projector), params={"mmproj.path": projector}),
        }


def compare(pair: Pair, row: Row) -> Result:
    for request in row.setup:
        pair.request(*request)
    ours, theirs = pair.request(row.method, row.path, row.body)
    differences = [] if ours.status == theirs.status else [f"status {ours.status}, not {theirs.status}"]
    a, b = _value(ours), _value(theirs)
    differences += sorted(shape_differences(a, b))
    for key in row.same:
        if not close(a.get(key), b.get(key)):
            differences.append(f"`{key}` has another value")
    return Result(row, ours.status, theirs.status, tuple(differences))


def _value(reply: Reply) -> Any:
    """Return the JSON of a reply, or the metrics' names as an object."""
    if not reply.headers.get("content-type", "").startswith("application/json"):
        names = {line.split(" ")[2] for line in reply.body.decode().splitlines() if line.startswith("# TYPE")}
        return dict.fromkeys(names, 0)
    return reply.json()


def close(a: object, b: object) -> bool:
    """Return whether two values are equal, up to the rounding of another instruction set."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and abs(a - b) <= TOLERANCE
    return bool(rounded(a) == rounded(b))
