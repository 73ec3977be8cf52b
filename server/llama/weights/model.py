"""Loaded weights of a model and of its draft model: the facts of their files, and new contexts."""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

from server.engine.lora import default_set
from server.engine.runner_api import RunnerInfo
from server.errors import InternalError, ModelFailed
from server.llama.context.cost import measure
from server.llama.context.draft_runner import LlamaDraftRunner, LlamaMtpHeads
from server.llama.context.embedding_runner import LlamaEmbeddingRunner, embedder_info
from server.llama.context.params import (
    context_params,
    embedding_params,
    generator_params,
    heads_params,
    runner_info,
    stateful,
)
from server.llama.context.runner import LlamaRunner
from server.llama.files.description import describe
from server.llama.files.model_file import fingerprint
from server.llama.fit import adapters, count_context, with_shared
from server.llama.library import C, collect_errors, fast, new_context, reason
from server.llama.media.projector import Projector, projector_memory
from server.llama.sampling.graph import detach_all, largest_chains
from server.llama.threads import ComputeThreads, thread_pools
from server.llama.vocab import LlamaVocab
from server.llama.weights.adapters import LoadedAdapters
from server.llama.weights.control_vectors import read_control_vectors
from server.llama.weights.native import NativeModel
from server.pool.memory import Footprint, added
from server.pool.spec import DraftFile, ModelSpec

MAX_VOCAB_DIFFERENCE = 128  # tokens that one vocabulary may have more (llama.cpp common/speculative.cpp)
_FIRST_COMPARED = 5  # lower ids are special tokens, whose texts differ (ibid.)


class DraftWeights:
    """A native draft model, shared by the draft contexts of a model's instances. Close it after them."""

    def __init__(self, model: int, name: str, file: DraftFile, target: int) -> None:
        """Take over the native `model`. Raises `ModelFailed` if it cannot draft for the native model `target`."""
        self._model = model
        self._name = name
        self._file = file
        self._n_vocab, self._n_vocab_target = (
            C.llama_vocab_n_tokens(C.llama_model_get_vocab(each)) for each in (model, target)
        )
        self.footprints: list[Footprint] = []  # of each context
        if problem := _model_problem(model) or _vocab_problem(target, model):
            raise ModelFailed(name, f"draft_model {file.path}: {problem}")

    def runner(self, n_ctx: int) -> LlamaDraftRunner:
        """Return a new context of `n_ctx` cells. Blocks. Raises `ModelFailed`."""
        model, native = self._model, self._file.native
        name = f"{self._name}, draft_model"
        params = context_params(name, replace(native, n_ctx=n_ctx))
        context = new_context(model, params, name, f"no context of n_ctx {params.n_ctx}")
        count_context(self.footprints, context, native)
        info = runner_info(context, model, params, native)
        runner = LlamaDraftRunner(context, info, self._n_vocab, self._n_vocab_target)
        runner.pools = thread_pools(native, params)
        return runner

    def close(self) -> None:
        """Free the weights."""
        C.llama_model_free(self._model)


def _model_problem(draft: int) -> str:
    """Return why a model cannot be a draft model; "" if it can."""
    if C.llama_model_has_encoder(draft) or not C.llama_model_has_decoder(draft):
        return "only a decoder model can draft"
    if C.llama_model_is_recurrent(draft) or C.llama_model_is_hybrid(draft):
        return "its memory can't roll back rejected draft tokens (a recurrent or hybrid model)"
    return ""


def _vocab_problem(target: int, draft: int) -> str:
    """Return how the vocabularies differ; "" if token ids are compatible (common_speculative_are_compatible)."""
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
    if abs(n_ours - n_theirs) > MAX_VOCAB_DIFFERENCE:
        return f"its vocabulary has {n_theirs} tokens, the model's {n_ours}; they may differ by {MAX_VOCAB_DIFFERENCE}"
    for token in range(_FIRST_COMPARED, min(n_ours, n_theirs)):
        own, other = fast.vocab_get_text(ours, token), fast.vocab_get_text(theirs, token)
        if own != other:
            return f"its token {token} is {other!r}, the model's {own!r}"
    return ""


class LlamaWeights:
    """`server.pool.protocols.Weights`: a native model and its contexts."""

    def __init__(
        self,
        native: NativeModel,
        release: Callable[[], None],
        spec: ModelSpec,
        draft: DraftWeights | None = None,
        projector: Projector | None = None,
    ) -> None:
        """`release`: called by `close`. `projector`: that of another load, which is closed after these contexts."""
        model, files = native.pointer, native.files
        if C.llama_model_has_encoder(model) and C.llama_model_has_decoder(model):
            reason = "the model is an encoder and a decoder: such can't be served (nor can they by llama-server)"
            raise ModelFailed(spec.id, reason)
        if not C.llama_vocab_n_tokens(C.llama_model_get_vocab(model)):
            raise ModelFailed(spec.id, "the model has no vocabulary")
        self._native: NativeModel | None = native
        self._release = release
        self._spec = spec
        self._draft = draft
        self._lock = threading.Lock()
        self._footprints: list[Footprint] = []  # of each context
        self._runners: set[LlamaRunner | LlamaEmbeddingRunner] = set()
        n_embd, n_layer = C.llama_model_n_embd(model), C.llama_model_n_layer(model)
        self._control = read_control_vectors(spec.id, spec.native, n_embd, n_layer)
        self.vocab = LlamaVocab(model)
        # For some models without a template, the library returns the name of a built-in one (src/llama-model.cpp).
        template = (C.llama_model_chat_template(model, None) or b"").decode("utf-8", "replace")
        self.info = replace(
            describe(spec, files, template),
            description=_description(model),
            ftype=(C.llama_ftype_name(C.llama_model_ftype(model)) or b"").decode(),
            vocab_type=self.vocab.type,
            bos_token=_piece(self.vocab, self.vocab.bos),
            add_bos=self.vocab.add_bos,
            eos_token=_piece(self.vocab, self.vocab.eos),
            fingerprint=fingerprint(files.parts, spec.native.metadata_overrides),
            control_vectors=self._control.fingerprint if self._control else "",
        )
        self._adapters = LoadedAdapters(native, spec.id, spec.native)
        try:
            self.media, self._owns_media = projector, projector is None
            if spec.mmproj is not None and self.vocab.missing_bytes:  # libmtmd tokenizes text without this check
                raise ModelFailed(spec.id, "its vocabulary cannot spell every text, so it takes no mmproj")
            if projector is None and spec.mmproj is not None:
                self.media = Projector(spec.id, spec.mmproj, model, self.vocab, spec.native)
            if self.media is not None:
                self.info = replace(self.info, media=self.media.kinds, media_marker=self.media.marker)
            self._media_memory = projector_memory(spec.id, spec.mmproj if self._owns_media else None, spec.native)
        except BaseException:
            self._adapters.close()
            raise

    def _open(self) -> NativeModel:
        with self._lock:
            if self._native is None:
                raise InternalError(f"model '{self._spec.id}' was unloaded")
            return self._native

    def runner(self) -> LlamaRunner:
        """Return a new context that generates. Blocks. Raises `ModelFailed`, also if memory is short."""
        native, spec = self._open(), self._spec
        with native.making:
            model = native.pointer
            params = generator_params(model, spec)
            samples = spec.engine.backend_sampling
            with largest_chains(model, params, wanted=samples):
                context = new_context(model, params, spec.id, f"no context of n_ctx {params.n_ctx}")
                if samples:
                    detach_all(context, params.n_seq_max)
            try:
                runner = self._new_runner(context, model, params)
            except BaseException:
                C.llama_free(context)
                raise
            self._opened(native, runner, params)
        return runner

    def _opened(
        self, native: NativeModel, runner: LlamaRunner | LlamaEmbeddingRunner, params: ctypes.Structure
    ) -> None:
        runner.pools = thread_pools(self._spec.native, params)
        runner.on_close = partial(self._closed, native, runner)
        native.decoding.add(runner.lock)
        with self._lock:
            self._runners.add(runner)

    def footprint(self) -> Footprint:
        """Return the footprint of the weights, all contexts created until now, the draft model and the projector."""
        own = with_shared(added(self._footprints))
        drafts = self._draft.footprints if self._draft is not None else []
        return added([own, adapters(self._spec.native, own), *drafts, self._media_memory])

    def _new_runner(self, context: int, model: int, params: ctypes.Structure) -> LlamaRunner:
        """Prepare a new native context, and return its runner. Raises `ModelFailed`."""
        spec, native = self._spec, self._spec.native
        if not C.llama_get_memory(context):
            raise ModelFailed(spec.id, "the model keeps no memory of its context, so it cannot generate text")
        self._add_context(context)
        info = runner_info(context, model, params, native)
        evaluation_s = evaluation_tokens = copy_s = 0.0
        if native.warmup:
            # In a thread that ends: libgomp keeps compute threads for each thread that has decoded. If there are more
            # than cores, they no longer spin while they wait, and a step of 13.8 ms takes 17.4 ms.
            with ThreadPoolExecutor(1, "warm-up") as executor:
                executor.submit(_warm_up, spec.id, context, self.vocab, on_device=info.deferred).result()
                if not info.unified:
                    costs = executor.submit(measure, context, info.n_seq, self.vocab.n_tokens, max(self.vocab.bos, 0))
                    evaluation_s, evaluation_tokens, copy_s = costs.result()
        if self.media is not None:
            self.media.serves(info.n_ctx_seq)
        info = replace(
            info,
            n_draft_max=min(spec.engine.n_draft_max, info.n_extra_outputs),
            turn_ends=self.vocab.turn_ends(),
            evaluation_s=evaluation_s,
            copy_s=copy_s,
        )
        draft = self._draft.runner(C.llama_n_ctx(context)) if self._draft is not None and info.n_draft_max else None
        heads = self._heads(context, model, info) if native.mtp and info.n_draft_max else None
        return LlamaRunner(
            *(context, self.vocab, info),
            draft=draft,
            heads=heads,
            encoder=self.media,
            n_swa=C.llama_model_n_swa(model),
            stateful=stateful(model),
            threads=ComputeThreads(params.n_threads, params.n_threads_batch),
            adapters=self._adapters,
            # padding must be truncated afterwards, and MTP heads would decode it
            evaluation_tokens=evaluation_tokens if info.can_cut and heads is None else 0.0,
        )

    def _heads(self, target: int, model: int, info: RunnerInfo) -> LlamaMtpHeads:
        """Return the model's MTP heads for the context `target`. Raises `ModelFailed`."""
        params = heads_params(model, self._spec, target)
        context = new_context(model, params, self._spec.id, "no context of its MTP heads")
        count_context(self._footprints, context, self._spec.native)
        info = replace(info, n_batch=C.llama_n_batch(context), n_rollback=0, n_extra_outputs=0)
        heads = LlamaMtpHeads(target, context, info, self.vocab.n_tokens, C.llama_model_n_embd_out(model))
        heads.pools = thread_pools(self._spec.native, params)
        return heads

    def _add_context(self, context: int) -> None:
        """Count the memory of a new context, and set the control vector in it."""
        count_context(self._footprints, context, self._spec.native)
        if self._control is not None:
            self._control.apply(context, self._spec.id)

    def embedding_runner(self) -> LlamaEmbeddingRunner:
        """Return a new context that embeds. Blocks. Raises `ModelFailed` like `runner`."""
        native = self._open()
        with native.making:
            model, spec = native.pointer, self._spec
            params = embedding_params(model, spec.id, native.files.header, spec.native)
            context = new_context(model, params, spec.id, "no context that embeds")
            try:
                self._add_context(context)
                self._adapters.use(context, default_set(self._adapters.all))  # with the configured scales
                info = embedder_info(context, model, spec.native)
                runner = LlamaEmbeddingRunner(context, self.vocab, info, self.media)
                if spec.native.warmup:
                    with ThreadPoolExecutor(1, "warm-up") as executor:  # in a thread that ends: see `_new_runner`
                        executor.submit(runner.embed, [[max(self.vocab.bos, 0)]]).result()
            except BaseException as error:
                C.llama_free(context)
                if isinstance(error, InternalError):
                    raise ModelFailed(spec.id, f"the first computation failed: {error.message}") from error
                raise
            self._opened(native, runner, params)
        if self.media is not None:
            self.media.serves(runner.info.n_ctx_seq)
        return runner

    def _closed(self, native: NativeModel, runner: LlamaRunner | LlamaEmbeddingRunner) -> None:
        with native.making:
            native.decoding.discard(runner.lock)
        with self._lock:
            self._runners.discard(runner)

    def close(self) -> None:
        """Free the weights. Idempotent. Raises `InternalError` if a context is open."""
        with self._lock:
            if self._runners:
                raise InternalError(f"model '{self._spec.id}' still has {len(self._runners)} open contexts")
            native, self._native = self._native, None
        if native is not None:
            if self._draft is not None:
                self._draft.close()
            if self.media is not None and self._owns_media:
                self.media.close()
            self.vocab.close()
            self._adapters.close()
            self._release()


def _warm_up(name: str, context: int, vocab: LlamaVocab, *, on_device: bool) -> None:
    """Decode BOS and EOS like llama-server (common_init_from_params), which pages in the weights and builds the graph.

    If `on_device`, also decode a full ubatch, for which a device has other kernels. Raises `ModelFailed`.
    """
    tokens = [token for token in (vocab.bos, vocab.eos) if token != -1] or [0]
    n_full = min(C.llama_n_ubatch(context), C.llama_n_ctx_seq(context))
    for n in (min(len(tokens), n_full), n_full)[: 1 + on_device]:
        array = (ctypes.c_int32 * n)(*islice(cycle(tokens), n))
        with collect_errors() as errors:
            status = C.llama_decode(context, C.llama_batch_get_one(array, n))
            C.llama_synchronize(context)
        if status != 0:
            why = reason(errors, "the library gave no reason")
            raise ModelFailed(name, f"the first decode failed ({status}): {why}")
        C.llama_memory_clear(C.llama_get_memory(context), True)


def _piece(vocab: LlamaVocab, token: int) -> str:
    """Return the text of a token; "" for -1."""
    return "" if token == -1 else vocab.piece(token).decode("utf-8", "replace")


def _description(model: int) -> str:
    buffer = ctypes.create_string_buffer(256)
    C.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
