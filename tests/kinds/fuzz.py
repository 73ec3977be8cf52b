"""Damaged GGUF headers that pass our checks reach the library, which may reject them but must not end its process.

FUZZ_ROUNDS=3000 python -m pytest -q tests/kinds/fuzz.py
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from server.errors import ModelFailed
from server.llama.files.gguf_header import read_header
from tests.support.ggufs import MODELS, damaged, gguf_file

KINDS = ("plain", "experts", "sliding-window", "recurrent", "hybrid", "bert", "template-reranker")
N_EACH = int(os.environ.get("FUZZ_ROUNDS", "300"))
VALUES = (0, 1, 2, 3, 7, 8, 31, 127, 128, 255)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_headers_never_crash_the_process(kind: str, tmp_path: Path) -> None:
    path = gguf_file(tmp_path, MODELS[kind])
    command = [sys.executable, "-m", "tests.kinds.fuzz", str(path), str(N_EACH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600 + 2 * N_EACH, check=False)
    assert done.returncode == 0, f"the last seed: {done.stdout.splitlines()[-1:]}; {done.stderr[-2000:]}"
    assert "loaded" in done.stdout


def _load_damaged(path: Path, seed: int, n_bytes: int) -> str:
    """Damage some of the first `n_bytes`, then load the file and create a context; return the outcome."""
    from server.llama.loader import LlamaLoader
    from server.pool.spec import LoadParams, ModelSpec

    rng = random.Random(seed)
    file = path
    for _ in range(rng.choice((1, 1, 2, 4))):
        before = file
        file = damaged(file, rng.randrange(24, n_bytes), bytes([rng.choice(VALUES)]))
        if before != path:
            before.unlink()
    try:
        loader = LlamaLoader()
        native = LoadParams(n_ctx=rng.choice((0, 256)), n_parallel=2, n_threads=1)
        fit = loader.fit(ModelSpec("m", file, native=native))
        weights = loader.load(fit.spec, lambda _: True)
        contexts = [weights.runner()] if weights.info.generates else [weights.embedding_runner()]
        for context in contexts:
            context.close()
        weights.close()
    except ModelFailed as error:
        return f"rejected: {error.reason[:100]}"
    finally:
        file.unlink()
    return "loaded"


if __name__ == "__main__":
    source = Path(sys.argv[1])
    size = read_header(source).n_bytes
    for number in range(int(sys.argv[2])):
        print(number, flush=True)
        print(_load_damaged(source, number, size), flush=True)
