"""Run the exported projector with libmtmd and llama.cpp, through llama-cpp-python."""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from numpy.typing import NDArray

MARKER = "<__media__>"

Array = NDArray[np.uint8] | NDArray[np.float32]
Medium = Array | bytes


class Reader:
    """demo.gguf with its projector. Answers questions about an image or audio with greedy decoding.

    Images are (height, width, 3) bytes, audio is mono samples at 16 kHz. Both may also be a file's bytes.
    """

    def __init__(self, model: Path, projector: Path, n_threads: int = 2) -> None:
        for silence in (llama_cpp.llama_log_set, mtmd.mtmd_log_set, mtmd.mtmd_helper_log_set):
            silence(_discard, ctypes.c_void_p())
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
        assert self.model, f"{model} can't be loaded"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch = 1024, 1024
        context.n_threads = context.n_threads_batch = n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        options = mtmd.mtmd_context_params_default()
        options.use_gpu, options.print_timings, options.n_threads = False, False, n_threads
        self.projector = mtmd.mtmd_init_from_file(str(projector).encode(), self.model, options)
        assert self.projector, f"{projector} can't be loaded"

    def _bitmap(self, medium: Medium) -> Any:
        if isinstance(medium, bytes):
            buffer = (ctypes.c_ubyte * len(medium)).from_buffer_copy(medium)
            return mtmd.mtmd_helper_bitmap_init_from_buf(self.projector, buffer, len(medium), False)
        data = np.ascontiguousarray(medium)
        if data.ndim == 1:
            samples = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            return mtmd.mtmd_bitmap_init_from_audio(len(data), samples)
        pixels = data.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))
        return mtmd.mtmd_bitmap_init(data.shape[1], data.shape[0], pixels)

    def _chunks(self, prompt: str, medium: Medium) -> Any:
        bitmap = self._bitmap(medium)
        chunks, given = mtmd.mtmd_input_chunks_init(), prompt.encode()
        text = mtmd.mtmd_input_text(text=given, text_len=len(given), add_special=False, parse_special=True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        code = mtmd.mtmd_tokenize(self.projector, chunks, ctypes.byref(text), bitmaps, 1)
        mtmd.mtmd_bitmap_free(bitmap)
        assert code == 0, f"mtmd_tokenize: {code}"
        return chunks

    def embeddings(self, medium: Medium, n_embd: int) -> NDArray[np.float32]:
        """Return the embeddings of an image or audio, (token, n_embd)."""
        chunks = self._chunks(MARKER, medium)
        found = np.zeros((0, n_embd), np.float32)
        for i in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, i)
            if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                assert mtmd.mtmd_encode_chunk(self.projector, chunk) == 0
                n = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
                found = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self.projector), (n, n_embd)).copy()
        mtmd.mtmd_input_chunks_free(chunks)
        return found

    def answer(self, prompt: str, medium: Medium, max_tokens: int = 32) -> str:
        """Return the reply to a prompt that contains MARKER at the position of the media."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        chunks = self._chunks(prompt, medium)
        past = ctypes.c_int32(0)
        code = mtmd.mtmd_helper_eval_chunks(self.projector, self.context, chunks, 0, 0, 1024, True, ctypes.byref(past))
        mtmd.mtmd_input_chunks_free(chunks)
        assert code == 0, f"mtmd_helper_eval_chunks: {code}"
        written: list[int] = []
        while len(written) < max_tokens:
            scores = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.n_vocab,))
            token = int(scores.argmax())
            if llama_cpp.llama_vocab_is_eog(self.vocab, token):
                break
            written.append(token)
            batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * 1)(token), 1)
            assert llama_cpp.llama_decode(self.context, batch) == 0
        return b"".join(map(self._piece, written)).decode(errors="replace")

    def _piece(self, token: int) -> bytes:
        buffer = (ctypes.c_char * 64)()
        n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, 64, 0, False)
        return buffer.raw[:n]


@llama_cpp.llama_log_callback
def _discard(level: int, text: bytes, data: object) -> None:
    """Print nothing."""
