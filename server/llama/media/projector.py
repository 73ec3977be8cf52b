"""A loaded projector, which tokenizes prompts with media and computes embeddings; and checks of projector files."""

import ctypes
import math
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from server.engine.media import MediaPrompt, MediaSpan, media_tokens
from server.errors import InternalError, InvalidRequest, ModelFailed
from server.llama.context.params import FLASH_ATTENTION
from server.llama.devices import CPU, devices, find_devices, offloads
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import bad_tensor, fingerprint, read_gguf
from server.llama.fit import Tree, tree_nodes
from server.llama.library import C, bind, collect_errors, reason
from server.llama.media import trial
from server.llama.media.chunks import Chunks, M, NativeChunk, start_media
from server.llama.threads import n_threads
from server.llama.vocab import BPE, MAX_PIECE_BYTES, LlamaVocab
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.memory import HOST, Bytes, Footprint, added
from server.pool.spec import LoadParams
from server.sandbox.process import public_environment
from server.vocab import PlainText

_MROPE = (8, 40)  # LLAMA_ROPE_TYPE_MROPE, _IMROPE
_ENCODERS = ("v.blk.", "v.patch_embd", "v.position_embd", "a.blk.", "a.position_embd", "a.conv1d")
"""Prefixes of tensors whose sizes do not depend on the model."""
_ENCODER_NAMES = {"v": "vision", "a": "audio"}
_LOOK_UP_PATCHES = ("mlp", "ldp", "ldpv2", "adapter")
"""Projectors with images of one size, whose patches are looked up as rows (tools/mtmd/models/llava.cpp)."""
_F32 = 0  # enum ggml_type
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
TRIAL_S = 60.0
"""Time limit for the library to build the graph of a projector, which usually takes 0.05 s."""
_ADD_POSITIONS = {
    "v": "gemma3 idefics3 lfm2 janus_pro phi4 qwen3vl_merger ling3vl step3vl internvl nemotron_v2_vl llama4 kimivl "
    "paddleocr kimik25 cogvlm glm4v glm5v granite4_vision muse-glimmer",
    "a": "ultravox voxtral qwen2a qwen2.5o glma meralion musicflamingo qwen3a",
}
"""Projectors that add position embeddings without a lookup, by the prefix of their tensors (tools/mtmd/models). Others
first look up rows, which converts any type to 32 bits.
"""
_VALUE_TYPES = {  # asserted by get_string, get_bool, get_f32 and get_u32 in tools/mtmd/clip.cpp
    "string": r"general\.(name|description)|clip\.(\w+\.)*projector_type",
    "bool": r"clip\.(has_\w+_encoder|use_gelu|use_silu)",
    "f32": r"clip\.\w+\.attention\.layer_norm_epsilon",
    "u32": r"clip\.\w+\.(embedding_length|feed_forward_length|block_count|projection_dim|attention\.head_count)"
    r"|clip\.vision\.(image_size|patch_size)|clip\.audio\.num_mel_bins",
}


class Projector:
    """`server.pool.protocols.MediaReader` and `server.engine.runner_api.MediaEncoder`. Thread-safe. It encodes one
    batch at a time.
    """

    def __init__(self, name: str, path: Path, model: int, vocab: LlamaVocab, native: LoadParams) -> None:
        """Load a projector for the native `model` and its `vocab`. Blocks. Raises `ModelFailed` if it does not fit the
        model.
        """
        header = read_gguf(name, path)
        check_projector(name, path, header, {C.llama_model_n_embd(model), C.llama_model_n_embd_inp(model)})
        start_media()
        self.marker = native.media_marker or f"<__media_{secrets.token_hex(16)}__>"
        params = projector_params(name, native, self.marker)
        with ThreadPoolExecutor(1, "open-projector") as executor:  # the compute threads of the warm-up end with it
            context, why = executor.submit(_opened, path, model, params).result()
        if not context:
            raise ModelFailed(name, f"mmproj {path}: {why}")
        self._context: int | None = context
        self._users = threading.Condition()
        self._n_users = 0
        self._encoding = threading.Lock()
        self.n_embd = C.llama_model_n_embd_inp(model)
        self._vocab = vocab
        self.mrope = C.llama_model_rope_type(model) in _MROPE
        limits = f"{native.image_min_tokens} {native.image_max_tokens}"
        self.fingerprint = f"{fingerprint([(path, header)])} {limits}"
        self._salt = f"{self.fingerprint}\0".encode()
        has_vision, has_audio = M.mtmd_support_vision(context), M.mtmd_support_audio(context)
        kinds: dict[BitmapKind, bool] = {"image": has_vision, "audio": has_audio}
        self.kinds = frozenset(kind for kind, is_supported in kinds.items() if is_supported)
        self.sample_rate = max(M.mtmd_get_audio_sample_rate(context), 0) if has_audio else 0
        self._n_ctx_seq_max = 0

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Yield the native context, which is not freed before the end of the block. Raises `InternalError`."""
        with self._users:
            if self._context is None:
                raise InternalError("the model was unloaded while it was in use")
            self._n_users += 1
        try:
            yield self._context
        finally:
            with self._users:
                self._n_users -= 1
                self._users.notify_all()

    def serves(self, n_ctx_seq: int) -> None:
        """Record that a context of the model has `n_ctx_seq` cells for a sequence."""
        self._n_ctx_seq_max = max(self._n_ctx_seq_max, n_ctx_seq)

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        """Return a prompt of texts and media. Raises `InvalidRequest` for a medium that the model does not support."""
        for part in parts:
            if isinstance(part, Bitmap) and part.kind not in self.kinds:
                raise InvalidRequest(f"{part.kind} input is not supported by this model's projector")
        if self._vocab.type == BPE:
            parts = [each for part in parts for each in self._short_parts(part, parse_special=parse_special)]
        tokens: list[int] = []
        spans: list[MediaSpan] = []
        n_slices: Counter[str] = Counter()  # by id of the medium
        with self._open() as context:
            # of audio, counting takes as long as preprocessing
            if len([part for part in parts if isinstance(part, Bitmap) and part.data and part.kind == "image"]) > 1:
                parts = self._without_data(context, parts, add_special=add_special, parse_special=parse_special)
            chunks = Chunks(context, parts, add_special=add_special, parse_special=parse_special)
            for chunk in chunks.read(context, self._salt):
                if isinstance(chunk, list):
                    tokens += chunk
                    continue
                span = self._span(chunk, len(tokens), n_slices[chunk.id])
                n_slices[chunk.id] += 1
                spans.append(span)
                tokens += media_tokens(span.id, span.nth, span.n_tokens)
        return MediaPrompt(tokens, tuple(spans))

    def _short_parts(self, part: str | Bitmap, *, parse_special: bool) -> Sequence[str | Bitmap]:
        """Return a text in the pieces in which `LlamaVocab` tokenizes it."""
        if isinstance(part, Bitmap) or len(part) <= MAX_PIECE_BYTES // 4:
            return (part,)
        parse_special = parse_special and not isinstance(part, PlainText)
        pieces = self._vocab.pieces(part.encode("utf-8", "replace"), parse_special=parse_special)
        return [type(part)(piece.decode()) for piece in pieces]

    def _without_data(
        self, context: int, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool
    ) -> Sequence[str | Bitmap]:
        """Return `parts`, without the data of media if they exceed every context: the request fails, so preprocessing
        them would be a waste.
        """
        sizes = [part if isinstance(part, str) else replace(part, data=b"") for part in parts]
        counted = Chunks(context, sizes, add_special=add_special, parse_special=parse_special)
        return sizes if self._n_ctx_seq_max and counted.n_tokens > self._n_ctx_seq_max else parts

    def _span(self, chunk: NativeChunk, start: int, nth: int) -> MediaSpan:
        linear = not self.mrope or chunk.is_audio or int(chunk.positions(0)[0, -1]) == chunk.n_tokens - 1 > 0
        return MediaSpan(start, chunk.n_tokens, chunk.n_pos, linear, chunk.id, nth, chunk.record, chunk)

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        """Return the number of tokens that `tokenize` would return."""
        return len(self.tokenize(parts, add_special=add_special, parse_special=parse_special).tokens)

    def encode(self, chunks: Sequence[NativeChunk]) -> list[bytes]:
        """Return the embeddings of the first chunks, as many as can be computed in one batch but at least one. Each has
        32-bit floats, [n_tokens, n_embd]. Raises `InternalError`, and `InvalidRequest` if they are not finite.

        Each call uses a new thread. OpenMP's compute threads belong to the calling thread; if there are more of them
        than CPUs, those of a step no longer spin while they wait (libgomp, GOMP_SPINCOUNT). It is a daemon thread: an
        executor would keep the process from ending while the library hangs.
        """
        encoding: Future[list[bytes]] = Future()

        def run() -> None:
            try:
                encoding.set_result(self._encoded(chunks))
            except BaseException as error:  # noqa: BLE001 - raised below
                encoding.set_exception(error)

        with self._encoding:
            thread = threading.Thread(target=run, name="llamapool-encode-once", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise InternalError(f"the system has no thread left to encode media in: {error}") from None
            thread.join()
        return encoding.result()

    def _encoded(self, chunks: Sequence[NativeChunk]) -> list[bytes]:
        with self._open() as context, collect_errors() as errors:
            batch = M.mtmd_batch_init(context)
            try:
                pointers = _fill(batch, context, chunks)
                if not pointers or M.mtmd_batch_encode(batch) != 0:
                    raise InternalError(f"a medium can't be encoded: {reason(errors, 'the library gave no reason')}")
                encoded = zip(pointers, chunks, strict=False)
                return [self._embeddings(batch, pointer, chunk.n_tokens) for pointer, chunk in encoded]
            finally:
                M.mtmd_batch_free(batch)

    def _embeddings(self, batch: int, chunk: int, n_tokens: int) -> bytes:
        start = M.mtmd_batch_get_output_embd(batch, chunk)
        if not start:
            raise InternalError("the library has no embeddings for a medium")
        embeddings = ctypes.string_at(start, 4 * self.n_embd * n_tokens)
        if not np.isfinite(np.frombuffer(embeddings, np.float32)).all():  # in cells they would corrupt other replies
            raise InvalidRequest("a medium's embeddings are not numbers")
        return embeddings

    def close(self) -> None:
        """Free the projector when no thread uses it. Idempotent."""
        with self._users:
            context, self._context = self._context, None
            self._users.wait_for(lambda: not self._n_users)
        if context is not None:
            M.mtmd_free(context)


def check_projector(name: str, path: Path, header: GgufHeader, sizes: set[int]) -> None:
    """Raise `ModelFailed` unless the file is a projector whose output size is one of `sizes`. The library would notice
    it only after loading, and leak the memory.
    """
    check_is_projector(name, path, header)
    if not any(sizes & set(tensor.shape) for tensor in header.tensors if not tensor.name.startswith(_ENCODERS)):
        dims = [header.integer(f"clip.{kind}.projection_dim") for kind in ("vision", "audio")]
        made_for = next((f" for {dim}" for dim in dims if dim), "")
        wanted = " or ".join(map(str, sorted(sizes)))
        raise ModelFailed(
            name,
            f"mmproj {path} is another model's: this one has embeddings of {wanted} numbers, no layer of it{made_for}",
        )


def check_is_projector(name: str, path: Path, header: GgufHeader) -> None:
    """Raise `ModelFailed` unless the file is a projector with which the library does not abort."""
    architecture = header.metadata.get("general.architecture", "nothing")
    if architecture != "clip":
        raise ModelFailed(
            name, f"mmproj {path} is no projector: its architecture is {architecture}, a projector's is clip"
        )
    if problem := _bad_value(header) or bad_tensor(header):
        raise ModelFailed(name, f"mmproj {path}: {problem}")
    try:
        why = _why_it_aborts(path.absolute(), path.stat().st_mtime_ns)
    except subprocess.TimeoutExpired:
        why = f"it is not done after {TRIAL_S:g} s"
    except OSError:  # no process can be started, so nothing is known about the file
        why = ""
    if why:
        raise ModelFailed(
            name,
            f"mmproj {path}: the library cannot compute it: types of values, or sizes such as clip.vision.image_size "
            f"and those of tensors, do not fit each other ({why}); convert the model's projector again, or use another "
            "file",
        )


def _bad_value(header: GgufHeader) -> str:
    """Return the first value on which the library would abort while it computes, or, on systems without a trial, while
    it reads the file; "" if there is none.
    """
    for key, found in header.types.items():
        wanted = next((type_ for type_, keys in _VALUE_TYPES.items() if re.fullmatch(keys, key)), found)
        if found != wanted:
            return f"{key} must be of type {wanted}, not {found}"
    for key, value in header.metadata.items():
        if isinstance(value, float) and key.endswith("layer_norm_epsilon") and not 0.0 <= value < math.inf:
            return f"{key} is {value}, not a small positive number"
    types = {tensor.name: tensor.type for tensor in header.tensors}
    for prefix, encoder in _ENCODER_NAMES.items():
        key, positions = f"clip.{encoder}.block_count", f"{prefix}.position_embd.weight"
        if header.metadata.get(key) == 0 and any(tensor.startswith(f"{prefix}.blk.") for tensor in types):
            return f"{key} is 0, but the file has layers"
        kind = header.metadata.get("clip.projector_type") or header.metadata.get(f"clip.{encoder}.projector_type")
        if types.get(positions, _F32) != _F32 and kind in _ADD_POSITIONS[prefix].split():
            return (
                f"the library can't add {positions} unless it has 32 bits a number; convert the file again, with that "
                "tensor as F32"
            )
    rows = next((tensor.shape[-1] for tensor in header.tensors if tensor.name == "v.position_embd.weight"), 0)
    per_side = header.integer("clip.vision.image_size") // max(header.integer("clip.vision.patch_size"), 1)
    n_positions = per_side**2 + ("v.class_embd" in types)
    kind = header.metadata.get("clip.projector_type") or header.metadata.get("clip.vision.projector_type")
    if rows < n_positions and kind in _LOOK_UP_PATCHES:
        return f"v.position_embd.weight has {rows} rows, fewer than the image's {n_positions} positions"
    return ""


@lru_cache(16)
def _why_it_aborts(path: Path, _modified: int) -> str:
    """Return why the library aborts while it reads the file and builds the projector's graph, by a trial in a child
    process; "" if it does not. Raises `subprocess.TimeoutExpired`.

    Which sizes match depends on the kind of projector (tools/mtmd/models has about fifty), so values cannot be checked.
    """
    library = M._libmtmd
    if not can_measure():
        return ""
    arguments = (library._name, _SYMBOL, str(ctypes.sizeof(M.mtmd_context_params)), path)
    done = subprocess.run(  # noqa: S603 - this interpreter with a file of this package
        [sys.executable, "-I", "-S", trial.__file__, *arguments],
        env=public_environment() | {"GGML_NO_BACKTRACE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=TRIAL_S,
        check=False,
    )
    if -done.returncode not in _CRASHES:  # other signals come from outside: SIGKILL if memory is short, SIGINT
        return ""
    assertions = re.findall(r"GGML_ASSERT\(.*", done.stderr.decode("utf-8", "replace"))
    return assertions[-1] if assertions else signal.Signals(-done.returncode).name


def projector_params(name: str, native: LoadParams, marker: str) -> ctypes.Structure:
    """Return the native parameters of a projector. Raises `ModelFailed` for an unknown device."""
    params: ctypes.Structure = M.mtmd_context_params_default()
    params.use_gpu = native.mmproj_offload and offloads(native) and native.mmproj_device != ()
    wanted = native.mmproj_device or (native.devices[0] or ())[:1]
    if params.use_gpu and wanted:
        try:
            params.device = find_devices(wanted)[0].pointer
        except ValueError as error:
            raise ModelFailed(name, f"mmproj_device: {error}") from None
    params.print_timings = False
    params.n_threads = n_threads(native.n_threads)
    params.flash_attn_type = FLASH_ATTENTION[native.flash_attn]
    params.warmup = native.warmup
    params.image_min_tokens = native.image_min_tokens
    params.image_max_tokens = native.image_max_tokens
    params.batch_max_tokens = native.mtmd_batch_max_tokens
    params.media_marker = marker.encode()
    return params


def _opened(path: Path, model: int, params: ctypes.Structure) -> tuple[int | None, str]:
    """Load a projector. Returns its native context, or None and the reason."""
    with collect_errors() as errors:
        context = M.mtmd_init_from_file(bytes(path), model, params)
    return context, _first_reason(errors, str(path))


def _first_reason(errors: list[str], path: str) -> str:
    """Return the first error without the names of functions: libmtmd logs the cause first, and general errors last."""
    message = (errors or ["the native library gave no reason"])[0].replace(f"failed to load model '{path}': ", "")
    while (parts := message.partition(": "))[0].isidentifier() and parts[2]:
        message = parts[2]
    return message


def _fill(batch: int, context: int, chunks: Sequence[NativeChunk]) -> list[int]:
    """Add chunks to `batch` until it is full, or a chunk has another size. Returns the native pointers of the added."""
    added_chunks: list[int] = []
    for chunk in chunks:
        pointer = chunk.preprocessed(context)
        if M.mtmd_batch_add_chunk(batch, pointer) != 0:
            break
        added_chunks.append(pointer)
    return added_chunks


_SYMBOL = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_NODE_WORDS = 6  # color, parent, left, right; device and bytes


def can_measure() -> bool:
    """Return whether the library reports the memory of a projector, as `fit.reports_memory`."""
    return sys.platform == "linux" and hasattr(M._libmtmd, _SYMBOL)


def projector_memory(name: str, path: Path | None, native: LoadParams) -> Footprint:
    """Return the memory of the projector at `path`; empty unless `can_measure`. Raises `ModelFailed`."""
    if path is None or not can_measure():
        return {}
    check_is_projector(name, path, read_gguf(name, path))
    start_media()
    params = projector_params(name, native, "<__media__>")
    measure = bind(M._libmtmd, _SYMBOL, Tree, ctypes.c_char_p, M.mtmd_context_params)
    names = {device.pointer: HOST if device.type == CPU else device.name for device in devices()}
    entries = [words[-2:] for words in tree_nodes(measure(bytes(path), params), _NODE_WORDS)]
    return added({names.get(device, HOST): Bytes(weights=n_bytes)} for device, n_bytes in entries)
