"""Sends a row to both servers and says what differs."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model.oracle.comparison import Pair, rounded, shape_differences
from tests.model.oracle.compatibility.rows import MARKER, Row
from tests.support.ggufs import BERT, BERT_RERANKER, PLAIN, REPO_FIM, gguf_file, lora_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.oracle import oracle
from tests.support.real_server import EXACT, Reply, llamapool

ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "LLAMA_MEDIA_MARKER": MARKER}
N_CTX, N_SLOTS = 2048, 4
TOLERANCE = 1e-3  # of log probabilities, and of the components of normalized vectors


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a row: ``status`` of both, and what differs, as words."""

    row: Row
    ours: int
    theirs: int
    differences: tuple[str, ...]


@contextmanager
def servers(folder: Path) -> Iterator[Mapping[str, Pair]]:
    """The pairs of servers that the rows name, all started at once."""
    lora = lora_file(folder, "lora")
    projector = str(projector_file(folder, TinyProjector("mlp")))
    for name in ("ours", "theirs"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        pairs = {
            "generating": _pair(
                *(stack, gguf_file(folder, REPO_FIM)),
                ["--lora", str(lora), "--slot-save-path", str(folder / "ours"), "--metrics", "--props"],
                {
                    "lora_adapters": [str(lora)],
                    "slot_save_path": f"{folder / 'theirs'}/",
                    "endpoint_metrics": True,
                    "endpoint_props": True,
                },
            ),
            "embedding": _pair(stack, gguf_file(folder, BERT), ["--embedding"], {"embedding": True}),
            "ranking": _pair(
                *(stack, gguf_file(folder, BERT_RERANKER)), ["--reranking"], {"embedding": True, "pooling_type": 4}
            ),
            "seeing": _pair(
                *(stack, gguf_file(folder, PLAIN)),
                ["--mmproj", projector, *EXACT],
                {"mmproj.path": projector, "flash_attn_type": 0, "cache_type_k": 0, "cache_type_v": 0},
            ),
        }
        for pair in pairs.values():
            pair.theirs.wait_until_ready()
            pair.ours.wait_until_ready()
        yield pairs


def _pair(stack: ExitStack, model: Path, flags: list[str], params: dict[str, Any]) -> Pair:
    theirs = oracle(
        *(model,), n_ctx=N_CTX, n_parallel=N_SLOTS, n_threads=1, alias="tiny", params=params, environment=ENVIRONMENT
    )
    stack.callback(theirs.stop)
    sizes = ["-c", str(N_CTX), "-np", str(N_SLOTS), "-t", "1", "-a", "tiny", "--spec-type", "none"]
    ours = llamapool(model, *sizes, *flags, environment=ENVIRONMENT)
    stack.callback(ours.stop)
    return Pair(ours, theirs)


def compare(pair: Pair, row: Row) -> Found:
    """Send `row` to both."""
    for request in row.first:
        pair.request(*request)
    ours, theirs = pair.request(row.method, row.path, row.body)
    differences = [] if ours.status == theirs.status else [f"status {ours.status}, not {theirs.status}"]
    a, b = _value(ours), _value(theirs)
    differences += sorted(shape_differences(a, b))
    for key in row.same:
        if not close(a.get(key), b.get(key)):
            differences.append(f"another `{key}`")
    return Found(row, ours.status, theirs.status, tuple(differences))


def _value(reply: Reply) -> Any:
    if not reply.headers.get("content-type", "").startswith("application/json"):
        names = {line.split(" ")[2] for line in reply.body.decode().splitlines() if line.startswith("# TYPE")}
        return dict.fromkeys(names, 0)
    return reply.json()


def close(a: object, b: object) -> bool:
    """Equal, but for the rounding of another instruction set."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and abs(a - b) <= TOLERANCE
    return bool(rounded(a) == rounded(b))
