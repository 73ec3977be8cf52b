"""LoRA adapters: checked against the model's tensors, then loaded.

The library reports most mistakes in its log. It aborts on a metadata value of another type than expected, and in the
first decode on shapes that cannot be multiplied (llama-adapter.cpp; llama-graph.cpp, build_lora_mm). Those are checked
here.
"""

import ctypes
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from server.engine.lora import Adapter
from server.engine.request import Adapters
from server.errors import InternalError, ModelFailed
from server.llama.files.gguf_header import NOT_MULTIPLIED, GgufHeader, Tensor
from server.llama.files.model_file import ModelFiles, check_files, fingerprint, read_gguf
from server.llama.files.roles import is_encoder
from server.llama.library import C, collect_errors, reason
from server.llama.weights.native import NativeModel
from server.pool.spec import LoadParams, ModelSpec

_ADAPTER = ctypes.POINTER(ctypes.c_void_p)  # the bindings' type of a llama_adapter_lora
TensorShape = tuple[int, ...]
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_TYPES = {
    "general.type": "string",
    "general.architecture": "string",
    "adapter.type": "string",
    _ALPHA: "f32",
    _INVOCATION: "[u32]",
}
_LOOKED_UP = "token_embd.weight"  # its rows are looked up, so A and B are exchanged
_OUTPUT = "output.weight"  # a decoder without it multiplies with the token embeddings, and aborts on exchanged tensors
_UNUSED = "_norm.weight"  # llama.cpp ignores them


class LoadedAdapters:
    """The LoRA adapters of a model, by id. `load` and `free` may be called while contexts decode."""

    def __init__(self, native: NativeModel, name: str, params: LoadParams) -> None:
        """Load the configured adapters. Raises `ModelFailed` that names the file."""
        self._native = native
        self._name = name
        self._loaded: dict[int, tuple[Adapter, ctypes._Pointer[ctypes.c_void_p]]] = {}  # with the library's pointers
        self._used: dict[int, Adapters] = {}  # by context
        try:
            for i, file in enumerate(params.lora):
                scale = 0.0 if params.lora_init_without_apply else file.scale
                self.load(Adapter(i if file.id is None else file.id, str(file.path), scale, name=file.name))
        except BaseException:  # the native model may be shared, so closing it would not free the adapters
            self.close()
            raise

    @property
    def all(self) -> tuple[Adapter, ...]:
        return tuple(adapter for adapter, _ in self._loaded.values())

    def load(self, wanted: Adapter) -> Adapter:
        """Load the file of an adapter, unless its id is loaded. Returns `wanted` with the metadata of the file.

        Blocks. Raises `ModelFailed` that names the file, and `Unavailable`.
        """
        if wanted.id in self._loaded:
            return self._loaded[wanted.id][0]
        path = Path(wanted.path)
        header = adapter_header(self._name, self._native.files, path)
        invocation = header.metadata.get(_INVOCATION, ())
        adapter = replace(
            wanted,
            task_name=header.text("adapter.lora.task_name"),
            prompt_prefix=header.text("adapter.lora.prompt_prefix"),
            alora_invocation_tokens=tuple(map(int, invocation)) if isinstance(invocation, tuple) else (),
            fingerprint=fingerprint([(path, header)]),
            n_bytes=path.stat().st_size,
        )
        _read_ahead(path)
        with self._native.paused(), collect_errors() as errors:
            pointer = C.llama_adapter_lora_init(self._native.pointer, os.fsencode(path))
        if not pointer:
            raise ModelFailed(self._name, f"{path}: {reason(errors, 'the library gave no reason')}")
        self._loaded = {**self._loaded, wanted.id: (adapter, pointer)}  # a new dict, as other threads may iterate
        return adapter

    def free(self, id_: int) -> None:
        """Free an adapter if it is loaded, after removing it from contexts. Blocks. Raises `Unavailable`."""
        with self._native.paused():
            loaded = self._loaded.get(id_)
            if loaded is None:
                return
            self._loaded = {other: each for other, each in self._loaded.items() if other != id_}
            for context, adapters in self._used.items():
                if id_ in dict(adapters):
                    self.use(context, ())
            C.llama_adapter_lora_free(loaded[1])

    def use(self, context: int, adapters: Adapters) -> None:
        """Set the LoRA set of `context`, which must not decode meanwhile. Raises `InternalError`."""
        if self._used.get(context, ()) == adapters:
            return
        n = len(adapters)
        pointers = (_ADAPTER * n)(*(self._loaded[id_][1] for id_, _ in adapters))
        scales = (ctypes.c_float * n)(*(scale for _, scale in adapters))
        if C.llama_set_adapters_lora(context, pointers, n, scales) != 0:
            raise InternalError(f"the library refused the LoRA set {adapters}")
        self._used[context] = adapters

    def close(self) -> None:
        """Free all adapters. The contexts of this model must be closed; those of others may still decode."""
        self._used.clear()
        for id_ in list(self._loaded):
            self.free(id_)

    def forget(self, context: int) -> None:
        """Forget a context before it is freed."""
        self._used.pop(context, None)


def adapter_problem(spec: ModelSpec) -> str:
    """Return why the first unusable adapter in `spec` is rejected, by the headers of the files; "" if there is none, or
    if the model's file is broken.
    """
    try:
        files = check_files(spec.id, spec.path, spec.native.metadata_overrides)
    except ModelFailed:
        return ""
    try:
        for file in spec.native.lora:
            adapter_header(spec.id, files, file.path)
    except ModelFailed as error:
        return error.reason
    return ""


def adapter_header(name: str, files: ModelFiles, path: Path) -> GgufHeader:
    """Return the header of an adapter that fits the model of `files`. Raises `ModelFailed` that names the file."""
    shapes = {tensor.name: _padded(tensor) for tensor in files.tensors}
    n_vocab = files.header.lengths.get("tokenizer.ggml.tokens", files.header.of_model("vocab_size"))
    header = read_gguf(name, path)
    problem = _problem(header, files.header.architecture, shapes, n_vocab)
    adapts_lookup = any(tensor.name.startswith(f"{_LOOKED_UP}.") for tensor in header.tensors)
    if not problem and adapts_lookup and _OUTPUT not in shapes and not is_encoder(files.header):
        problem = f"adapts '{_LOOKED_UP}', which this model uses as its output, too: the library can't do that"
    if problem:
        raise ModelFailed(name, f"{path}: {problem}")
    return header


def _read_ahead(path: Path) -> None:
    """Read the file into the page cache: decodes are paused while the library reads it."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def _problem(header: GgufHeader, architecture: str, shapes: Mapping[str, TensorShape], n_vocab: int) -> str:
    """Return why the library cannot use this adapter with this model; "" if it can."""
    for key, wanted in _TYPES.items():
        found = header.types.get(key, wanted)
        if found != wanted:
            return f"{key} is of type {found}, not {wanted}"
    kind, adapter_type = header.text("general.type"), header.text("adapter.type")
    if kind != "adapter" or adapter_type != "lora":
        return f"is no LoRA adapter (general.type is '{kind}', adapter.type '{adapter_type}')"
    if header.architecture != architecture:
        return f"is an adapter for the architecture '{header.architecture}', the model's is '{architecture}'"
    if not math.isfinite(float(str(header.metadata.get(_ALPHA, 0.0)))):
        return f"{_ALPHA} is not a finite number"
    return _invocation_problem(header, n_vocab) or _tensor_problem(header, shapes)


def _invocation_problem(header: GgufHeader, n_vocab: int) -> str:
    if _INVOCATION not in header.types:
        return ""
    tokens = header.metadata.get(_INVOCATION)
    if not isinstance(tokens, tuple):
        return f"{_INVOCATION} has {header.lengths[_INVOCATION]} tokens"
    outside = [token for token in tokens if int(token) >= n_vocab]
    return f"{_INVOCATION} has the token {outside[0]}, the vocabulary ends at {n_vocab - 1}" if outside else ""


def _tensor_problem(header: GgufHeader, shapes: Mapping[str, TensorShape]) -> str:
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in header.tensors:
        stem, dot, part = tensor.name.rpartition(".")
        if dot and part in ("lora_a", "lora_b"):
            pairs.setdefault(stem, {})[part] = tensor
        elif not tensor.name.endswith(_UNUSED):
            return f"the tensor '{tensor.name}' is no part of a LoRA adapter"
        if tensor.type in NOT_MULTIPLIED:
            return f"the tensor '{tensor.name}' is of type {tensor.type}, which is not for multiplying"
    for stem, pair in pairs.items():
        if len(pair) < 2:
            return f"'{stem}' has a {next(iter(pair))}, but not the other part"
        if stem not in shapes:
            return f"the model has no tensor '{stem}'; the adapter was made for another model"
        if not _multiplies(stem, shapes[stem], _padded(pair["lora_a"]), _padded(pair["lora_b"])):
            return f"'{stem}' has another shape than the model's; the adapter was made for another model"
    return ""


def _multiplies(stem: str, base: TensorShape, a: TensorShape, b: TensorShape) -> bool:
    """Return whether b * a has the shape of `base`. Shapes are in GGUF's order, with the row length first."""
    if stem.endswith(_LOOKED_UP):
        return (base[0], base[1], a[0]) == (b[1], a[1], b[0]) and a[2:] == b[2:] == base[2:]
    return (base[0], base[1], a[1]) == (a[0], b[1], b[0]) and a[2:] == b[2:] == base[2:]


def _padded(tensor: Tensor) -> TensorShape:
    return tensor.shape + (1,) * (4 - len(tensor.shape))
