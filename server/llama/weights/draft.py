"""A draft model's weights: compatibility with the target model, and contexts over them."""

import threading
from dataclasses import replace

from server.engine.runner_api import RunnerInfo
from server.errors import InternalError, ModelFailed
from server.llama.context.draft_runner import LlamaDraftRunner
from server.llama.context.params import context_params
from server.llama.context.thread_pools import thread_pools
from server.llama.devices import offloads, used_devices
from server.llama.files.model_file import ModelFiles
from server.llama.fit.breakdown import Taken
from server.llama.fit.memory import check_kv_fits
from server.llama.library import C, fast, new_context
from server.pool.memory import Footprint
from server.pool.spec import DraftFile
from server.sandbox.memory import available_bytes

MOST_DIFFERENT = 128  # tokens that one vocabulary may have more (llama.cpp common/speculative.cpp)
_FIRST_COMPARED = 5  # the ids before are special ones, which are spelled differently (ibid.)


class DraftWeights:
    """One native model, shared by the draft contexts of a model's instances. Free it after `close`d contexts only."""

    def __init__(self, model: int, name: str, file: DraftFile, files: ModelFiles, target: int) -> None:
        """Check it against the native `target` model. Raises `ModelFailed` if it cannot draft for it."""
        self._model: int | None = model
        self._name = name
        self._file = file
        self._header = files.header
        self._n_vocab, self._n_vocab_target = (
            C.llama_vocab_n_tokens(C.llama_model_get_vocab(each)) for each in (model, target)
        )
        self._taken = Taken([device.name for device in used_devices(file.native)])
        self._lock = threading.Lock()
        self._n_open = 0
        problem = _unfit(model) or _different(target, model)
        if problem:
            raise ModelFailed(name, f"draft_model {file.path}: {problem}")

    def runner(self, n_ctx: int) -> LlamaDraftRunner:
        """A new context of `n_ctx` cells; blocking. Raises `ModelFailed`."""
        model = self._model
        if model is None:
            raise InternalError(f"the draft model of '{self._name}' was unloaded")
        name = f"{self._name}, draft_model"
        params = context_params(name, replace(self._file.native, n_ctx=n_ctx))
        check_kv_fits(name, self._header, params, n_ctx, offloaded=offloads(self._file.native))
        context = new_context(model, params, name, f"no context of n_ctx {params.n_ctx}")
        self._taken.count(context)
        n_seq, unified = int(params.n_seq_max), bool(params.kv_unified)
        n_ctx_seq = min(C.llama_n_ctx_seq(context), C.llama_model_n_ctx_train(model))
        info = RunnerInfo(
            n_seq=n_seq,
            n_ctx_seq=n_ctx_seq,
            n_cells=C.llama_n_ctx(context) if unified else n_ctx_seq * n_seq,
            n_batch=C.llama_n_batch(context),
            n_ubatch=C.llama_n_ubatch(context),
            unified=unified,
            free_bytes=available_bytes(),
        )
        with self._lock:
            self._n_open += 1
        return LlamaDraftRunner(
            *(context, info, self._n_vocab, self._n_vocab_target),
            deferred=offloads(self._file.native),
            pools=thread_pools(self._file.native, params),
            on_close=self._forget,
        )

    def footprint(self) -> Footprint:
        """Return the footprint of the weights and of the contexts created so far."""
        return self._taken.footprint()

    def _forget(self) -> None:
        with self._lock:
            self._n_open -= 1

    def close(self) -> None:
        """Free the weights. Raises `InternalError` while a context is open; once is enough."""
        with self._lock:
            if self._n_open:
                raise InternalError(f"the draft model of '{self._name}' still has {self._n_open} open contexts")
            model, self._model = self._model, None
        if model is not None:
            C.llama_model_free(model)


def _unfit(draft: int) -> str:
    """Return why this model cannot be a draft model; "" if it can."""
    if C.llama_model_has_encoder(draft) or not C.llama_model_has_decoder(draft):
        return "only a decoder model can draft"
    if C.llama_model_is_recurrent(draft) or C.llama_model_is_hybrid(draft):
        return "its memory can't roll back rejected draft tokens (a recurrent or hybrid model)"
    return ""


def _different(target: int, draft: int) -> str:
    """Return the difference between the vocabularies; "" if token ids mean the same
    (common_speculative_are_compatible).
    """
    ours, theirs = C.llama_model_get_vocab(target), C.llama_model_get_vocab(draft)
    kinds = C.llama_vocab_type(ours), C.llama_vocab_type(theirs)
    if kinds[0] != kinds[1]:
        return f"its vocabulary is of type {kinds[1]}, the model's of type {kinds[0]}"
    for name in ("bos", "eos"):
        added = [getattr(C, f"llama_vocab_get_add_{name}")(vocab) for vocab in (ours, theirs)]
        ids = [getattr(C, f"llama_vocab_{name}")(vocab) for vocab in (ours, theirs)]
        if added[0] != added[1]:
            return f"it adds {_of(name, added[1])}, the model {_of(name, added[0])}"
        if added[0] and ids[0] != ids[1]:
            return f"its {name} token is {ids[1]}, the model's {ids[0]}"
    n_ours, n_theirs = C.llama_vocab_n_tokens(ours), C.llama_vocab_n_tokens(theirs)
    if abs(n_ours - n_theirs) > MOST_DIFFERENT:
        return f"its vocabulary has {n_theirs} tokens, the model's {n_ours}; they may differ by {MOST_DIFFERENT}"
    text = fast.vocab_get_text
    for token in range(_FIRST_COMPARED, min(n_ours, n_theirs)):
        if text(ours, token) != text(theirs, token):
            said = [(text(vocab, token) or b"").decode("utf-8", "replace") for vocab in (ours, theirs)]
            return f"its token {token} is {said[1]!r}, the model's {said[0]!r}"
    return ""


def _of(name: str, added: bool) -> str:
    return f"a {name} token" if added else f"no {name} token"
