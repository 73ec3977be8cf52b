"""A draft model's weights: compatibility with the target model, and contexts over them."""

from dataclasses import replace

from server.errors import InternalError, ModelFailed
from server.llama.context.draft_runner import LlamaDraftRunner
from server.llama.context.params import context_params, runner_info
from server.llama.devices import offloads, used_devices
from server.llama.fit.memory import Taken
from server.llama.library import C, fast, new_context
from server.llama.threads import thread_pools
from server.pool.spec import DraftFile

MOST_DIFFERENT = 128  # tokens that one vocabulary may have more (llama.cpp common/speculative.cpp)
_FIRST_COMPARED = 5  # the ids before are special tokens, which are spelled differently (ibid.)


class DraftWeights:
    """One native model, shared by the draft contexts of a model's instances. Close it after them."""

    def __init__(self, model: int, name: str, file: DraftFile, target: int) -> None:
        """Check it against the native `target` model. Raises `ModelFailed` if it cannot draft for it."""
        self._model: int | None = model
        self._name = name
        self._file = file
        self._n_vocab, self._n_vocab_target = (
            C.llama_vocab_n_tokens(C.llama_model_get_vocab(each)) for each in (model, target)
        )
        self.taken = Taken([device.name for device in used_devices(file.native)])
        if problem := _unfit(model) or _different(target, model):
            raise ModelFailed(name, f"draft_model {file.path}: {problem}")

    def runner(self, n_ctx: int) -> LlamaDraftRunner:
        """Return a new context of `n_ctx` cells. Blocks. Raises `ModelFailed`."""
        model, native = self._model, self._file.native
        if model is None:
            raise InternalError(f"the draft model of '{self._name}' was unloaded")
        name = f"{self._name}, draft_model"
        params = context_params(name, replace(native, n_ctx=n_ctx))
        context = new_context(model, params, name, f"no context of n_ctx {params.n_ctx}")
        self.taken.count(context)
        return LlamaDraftRunner(
            *(context, runner_info(context, model, params), self._n_vocab, self._n_vocab_target),
            deferred=offloads(native),
            pools=thread_pools(native, params),
        )

    def close(self) -> None:
        """Free the weights. Idempotent."""
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
    facts = [
        {
            "type": C.llama_vocab_type(vocab),
            "BOS token": C.llama_vocab_bos(vocab) if C.llama_vocab_get_add_bos(vocab) else None,
            "EOS token": C.llama_vocab_eos(vocab) if C.llama_vocab_get_add_eos(vocab) else None,
        }
        for vocab in (ours, theirs)
    ]
    for name, value in facts[0].items():
        if facts[1][name] != value:
            return f"the {name} of its vocabulary is {facts[1][name]}, the model's {value}"
    n_ours, n_theirs = C.llama_vocab_n_tokens(ours), C.llama_vocab_n_tokens(theirs)
    if abs(n_ours - n_theirs) > MOST_DIFFERENT:
        return f"its vocabulary has {n_theirs} tokens, the model's {n_ours}; they may differ by {MOST_DIFFERENT}"
    for token in range(_FIRST_COMPARED, min(n_ours, n_theirs)):
        own, other = fast.vocab_get_text(ours, token), fast.vocab_get_text(theirs, token)
        if own != other:
            return f"its token {token} is {other!r}, the model's {own!r}"
    return ""
