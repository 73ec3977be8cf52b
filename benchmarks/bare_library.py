"""How fast a llama.cpp library decodes by itself: the same loop over ctypes for any build of it.

``python -m benchmarks.bare_library LIBRARY MODEL [--threads 2] [--sequences 1] [--tokens 32] [--prompt 256]``

A server can't be faster than its library, and the oracle's library is another build, for other instructions. This
measures both with nothing around them: no sampling, no HTTP, fixed tokens, logits computed for every sequence.
Prints one JSON object: ``decode`` and ``prompt`` in tokens per second.

Structures go over by value, and versions differ in their tails. Only the leading fields are named here; the rest is
carried as opaque bytes from the library's own defaults, in a buffer larger than any version's structure. Extra bytes
behind a last argument or a returned structure are harmless in the System V calling convention (x86-64, aarch64).
"""

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_ubyte, c_uint32, c_void_p
from dataclasses import asdict, dataclass
from pathlib import Path

OPAQUE_BYTES = 512
N_BATCH = 512
CONTEXT_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1}  # llama-context.cpp


class LibraryMismatchError(Exception):
    """The library's structures are not those that this file knows."""


class ModelParams(ctypes.Structure):
    """``llama_model_params``, all of it opaque: the defaults are used."""

    _fields_ = [("rest", c_ubyte * OPAQUE_BYTES)]


class ContextParams(ctypes.Structure):
    """``llama_context_params``: its first nine fields, then opaque bytes."""

    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("rest", c_ubyte * OPAQUE_BYTES),
    ]


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "llama_backend_init": (None, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_n_ctx_seq": (c_uint32, [c_void_p]),
    "llama_n_seq_max": (c_uint32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits": (c_void_p, [c_void_p]),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of all sequences together."""

    decode: float
    prompt: float


class BareContext:
    """A model and one context on it. Everything is freed by the end of the process."""

    def __init__(self, library: Path, model: Path, n_threads: int, n_seq: int, n_ctx_seq: int) -> None:
        """Raises `LibraryMismatchError` where the library does not understand the structures above."""
        self._lib = ctypes.CDLL(str(library))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._lib, name)
            function.restype = result
            function.argtypes = arguments
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)(lambda *_: None)
        self._lib.llama_log_set(self._quiet, None)
        self._lib.llama_backend_init()
        weights = self._lib.llama_model_load_from_file(str(model).encode(), self._lib.llama_model_default_params())
        if not weights:
            raise LibraryMismatchError(f"{library} cannot load {model}")
        self._context = self._lib.llama_init_from_model(weights, self._params(n_threads, n_seq, n_ctx_seq))
        if self._lib.llama_n_seq_max(self._context) != n_seq:
            raise LibraryMismatchError(f"{library}: the context has another number of sequences than asked for")
        self._batch = self._lib.llama_batch_init(N_BATCH, 0, 1)

    def _params(self, n_threads: int, n_seq: int, n_ctx_seq: int) -> ContextParams:
        params: ContextParams = self._lib.llama_context_default_params()
        for name, expected in CONTEXT_DEFAULTS.items():
            if getattr(params, name) != expected:
                raise LibraryMismatchError(f"llama_context_params.{name} is {getattr(params, name)}, not {expected}")
        params.n_ctx = n_seq * n_ctx_seq
        params.n_seq_max = n_seq
        params.n_threads = params.n_threads_batch = n_threads
        return params

    def decode(self, entries: list[tuple[int, int]], logits: bool) -> None:
        """One ``llama_decode`` of a fixed token at each (sequence, position)."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (sequence, position) in enumerate(entries):
            batch.token[i] = 300 + (position * 7 + sequence * 131) % 4096
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        status = self._lib.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        if logits:
            self._lib.llama_get_logits(self._context)  # waits for the result

    def clear(self) -> None:
        """Forget every sequence."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)


def measure(library: Path, model: Path, n_threads: int, n_seq: int, n_tokens: int, n_prompt: int) -> Speed:
    """Speed of `n_seq` sequences decoding side by side, and of a prompt in one batch of at most `N_BATCH`."""
    context = BareContext(library, model, n_threads, n_seq, n_ctx_seq=max(n_prompt, n_tokens + 8) + 16)
    prompt = [(0, position) for position in range(min(n_prompt, N_BATCH))]
    context.decode(prompt[:32], logits=False)  # warm caches and threads
    context.clear()
    start = time.perf_counter()
    context.decode(prompt, logits=False)
    prompt_s = time.perf_counter() - start
    context.clear()
    for position in range(4):
        context.decode([(sequence, position) for sequence in range(n_seq)], logits=True)
    start = time.perf_counter()
    for position in range(4, 4 + n_tokens):
        context.decode([(sequence, position) for sequence in range(n_seq)], logits=True)
    decode_s = time.perf_counter() - start
    return Speed(decode=n_seq * n_tokens / decode_s, prompt=len(prompt) / prompt_s)


def measure_apart(library: Path, model: Path, n_threads: int, n_seq: int, n_tokens: int, n_prompt: int) -> Speed:
    """`measure` in a process of its own, so that two builds of one library never meet."""
    command = [sys.executable, "-m", "benchmarks.bare_library", str(library), str(model)]
    options = {"threads": n_threads, "sequences": n_seq, "tokens": n_tokens, "prompt": n_prompt}
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    finished = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True)
    return Speed(**json.loads(finished.stdout))


def libraries() -> dict[str, Path]:
    """Where the two libraries lie: Llamapool's own and the oracle's."""
    return {
        "llamapool": _package("llama_cpp") / "lib" / "libllama.so",
        "oracle": _package("xllamacpp") / "xllamacpp.abi3.so",
    }


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed here")
    return Path(spec.origin).parent


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Bare decode speed of a llama.cpp library.")
    parser.add_argument("library", type=Path, help="a path, or 'llamapool' or 'oracle' for the installed ones")
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256)
    chosen = parser.parse_args()
    library = libraries().get(str(chosen.library), chosen.library)
    speed = measure(library, chosen.model, chosen.threads, chosen.sequences, chosen.tokens, chosen.prompt)
    print(json.dumps(asdict(speed)))


if __name__ == "__main__":
    main()
