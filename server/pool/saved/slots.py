"""Saves a slot of a model to a file, and restores it in any process with the same configuration. A worker process saves
its slots itself, so that no state crosses the connection.

A saved slot is restored only if everything is equal that its cells depend on besides their tokens (`origin_of`).
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from server.engine.cache.prefix_cache import CacheEntry
from server.engine.cache.scope import cache_scope, owner_of
from server.engine.lora import NEVER, AdapterSet, adapter_set, default_set
from server.engine.request import Adapters
from server.errors import InvalidRequest
from server.pool.model import LoadedModel
from server.pool.saved.format import Description, LoraSet, encode, open_saved, read_foreign
from server.pool.saved.store import SavedFiles
from server.pool.worker.proxies import IsolatedEngine

_NAMES = {
    "model": "the model",
    "n_ctx": "the slot's context size",
    "cache_types": "the KV cache's types (keys/values)",
    "layout": "the KV cache's layout",
    "rope": "the RoPE settings",
    "control_vectors": "the control vectors",
}
_LORA = "the LoRA set"
_ORIGINAL_CONTEXT = ".rope.scaling.original_context_length"


def origin_of(model: LoadedModel) -> dict[str, str | int]:
    """Return the facts that cells depend on except the LoRA set, ordered as `_NAMES`, without paths."""
    native, engine = model.spec.native, model.engine
    streams = 1 if native.unified else engine.n_slots_each  # of each instance
    scaling = (native.rope_scale, native.rope_freq_base, native.rope_freq_scale, native.yarn_orig_ctx)
    yarn = (native.yarn_ext_factor, native.yarn_attn_factor, native.yarn_beta_slow, native.yarn_beta_fast)
    return {
        "model": model.info.fingerprint,
        "n_ctx": engine.n_ctx_seq,
        "cache_types": f"{native.cache_type_k}/{native.cache_type_v}",
        "layout": f"{streams} streams, flash attention {native.flash_attn}, "
        f"sliding windows {'whole' if native.swa_full else 'cut'}",
        "rope": " ".join(map(str, (native.rope_scaling or "default", *scaling, *yarn))),
        "control_vectors": model.info.control_vectors,
    }


def origin_of_cells(model: LoadedModel, library: str) -> dict[str, str | int]:
    """Return `origin_of` for states of the disk cache: with the `library` that wrote them, since builds may use
    different formats, and without the length of the context.

    The number of slots counts if each has a separate stream of cells: the library writes it into a state and refuses
    other numbers (src/llama-kv-cache.cpp, state_read). The length counts if contexts above the model's original length
    use other RoPE factors (src/llama-model.cpp, get_rope_factors).
    """
    origin = origin_of(model)
    original = [n for key, n in model.info.metadata.items() if key.endswith(_ORIGINAL_CONTEXT)]
    n_ctx, longer = model.engine.n_ctx_seq, False
    if original and original[0].isdecimal():
        longer = n_ctx > int(original[0])
    return origin | {"n_ctx": "longer than trained" if longer else "any", "library": library}


def describe(model: LoadedModel, saved: CacheEntry) -> Description:
    """Return the description to write with the state of `saved`."""
    adapter_set = saved.adapter_set
    return Description(
        origin=origin_of(model),
        lora=_by_content(model, adapter_set.adapters),
        lora_start=None if adapter_set.start == NEVER else adapter_set.start,
        lora_for_all=_by_content(model, default_set(model.engine.adapters)),
        n_tokens=len(saved.tokens),
        n_exact=None if saved.n_exact == NEVER else saved.n_exact,
        scope=adapter_set.scope,
        checkpoints=tuple((n, len(state)) for n, state in saved.checkpoints.items()),
        media=projector_of(model) if saved.media else "",
    )


NO_PROJECTOR = "Cannot restore media tokens without an mmproj"
"""llama-server's message (server-common.cpp, server_tokens::deserialize)."""


def projector_of(model: LoadedModel) -> str:
    """Return the fingerprint that the embeddings of media depend on; "" = no projector."""
    return "" if model.media is None else model.media.fingerprint


def checked_adapter_set(model: LoadedModel, saved: Description) -> AdapterSet:
    """Return the adapter set that computed `saved`, with the ids of the adapters in `model`.

    Raises `InvalidRequest`, which names all differences. The LoRA set matches if the default set of `model` computed
    the cells. It also matches if it was the default set at the save, and a request's ``lora`` computed the cells.
    """
    differences = [_difference(_NAMES[key], saved.origin.get(key), here) for key, here in origin_of(model).items()]
    set_now = _by_content(model, default_set(model.engine.adapters))
    adapters = matching_adapters(model, saved.lora)
    if adapters is None or set_now not in (saved.lora, saved.lora_for_all):
        differences.append(_difference(_LORA, _readable(saved.lora), _readable(set_now)))
    if saved.media and model.media is None:
        raise InvalidRequest(NO_PROJECTOR)
    if saved.media:
        differences.append(_difference("the projector", saved.media, projector_of(model)))
    if any(differences) or adapters is None:
        raise InvalidRequest(f"it was saved elsewhere: {'; '.join(filter(None, differences))}")
    return adapter_set_of(saved, adapters)


def adapter_set_of(saved: Description, adapters: Adapters) -> AdapterSet:
    """Return the adapter set that computed `saved`, with the ids in `adapters`."""
    return AdapterSet(adapters, NEVER if saved.lora_start is None else saved.lora_start, saved.scope)


def _difference(name: str, there: object, here: object) -> str:
    """Return a message if two values differ; otherwise ""."""
    return "" if there == here else f"{name} differs (in the file: {there or 'none'}, here: {here or 'none'})"


def _by_content(model: LoadedModel, adapters: Adapters) -> LoraSet:
    content = {adapter.id: adapter.fingerprint for adapter in model.engine.adapters}
    if not content.keys() >= dict(adapters).keys():
        raise InvalidRequest("it was computed by a LoRA adapter that is unloaded")
    return tuple(sorted((content[id_], scale) for id_, scale in adapters))


def matching_adapters(model: LoadedModel, lora: LoraSet) -> Adapters | None:
    """Return the ids in `model` of the adapters in `lora`; None if one is not loaded. A file may have several ids."""
    ids: dict[str, list[int]] = {}
    for adapter in model.engine.adapters:
        ids.setdefault(adapter.fingerprint, []).append(adapter.id)
    try:
        return tuple(sorted((ids[content].pop(0), scale) for content, scale in lora))
    except (KeyError, IndexError):
        return None


def _readable(lora: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{content[:8]} at {scale:g}" for content, scale in lora)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotTransfer:
    """The size of a slot that was saved or restored, and the duration with the wait for the slot."""

    n_tokens: int
    n_bytes: int
    ms: float


async def save(model: LoadedModel, id_slot: int, files: SavedFiles, name: str, owner: str = "") -> SlotTransfer:
    """Save the content of a slot when it is idle. Raises `InvalidRequest`, `InternalError`, and `PermissionDenied` if
    the content belongs to another owner.
    """
    started, engine = time.perf_counter(), model.engine
    if isinstance(engine, IsolatedEngine):
        return cast(SlotTransfer, await engine.in_worker("save_slot", id_slot, files, name, owner))
    saved = await engine.save_slot(id_slot, owner)
    description = describe(model, saved)
    n_bytes = await asyncio.to_thread(lambda: files.write(name, encode(saved, description, files.secret)))
    return SlotTransfer(len(saved.tokens), n_bytes, (time.perf_counter() - started) * 1e3)


async def restore(model: LoadedModel, id_slot: int, files: SavedFiles, name: str, owner: str = "") -> SlotTransfer:
    """Replace the content of a slot when it is idle; the new content belongs to `owner`.

    Raises `InvalidRequest` with the reason why the file is refused. Then the slot is unchanged, or empty if the library
    refused the state.
    """
    started, engine = time.perf_counter(), model.engine
    if isinstance(engine, IsolatedEngine):
        return cast(SlotTransfer, await engine.in_worker("restore_slot", id_slot, files, name, owner))
    saved, n_bytes = await asyncio.to_thread(_read, model, files, name)
    saved = replace(
        saved, adapter_set=replace(saved.adapter_set, scope=_restored_scope(saved.adapter_set.scope, owner))
    )
    try:
        await engine.restore_slot(id_slot, saved)
    except InvalidRequest as error:
        raise _refusal(error) from None
    return SlotTransfer(len(saved.tokens), n_bytes, (time.perf_counter() - started) * 1e3)


def _restored_scope(scope: str, owner: str) -> str:
    """Return the cache namespace for `owner`: the saved one, unless that had no owner. Raises `InvalidRequest`."""
    if owner_of(scope) == owner:
        return scope
    if owner_of(scope):
        raise _refusal(InvalidRequest("it was saved for another API key"))
    return cache_scope("key", owner, "")


def _read(model: LoadedModel, files: SavedFiles, name: str) -> tuple[CacheEntry, int]:
    with files.opened(name) as (file, size):
        try:
            foreign = None if files.secret else read_foreign(file, size, model.vocab.n_tokens)
            if foreign is None:
                file.seek(0)
                found = open_saved(file, size, files.secret)
                saved = found.read(model.vocab.n_tokens, checked_adapter_set(model, found.description))
            else:
                logger.warning("%s was not saved here: nothing proves that this model and these settings fit it", name)
                (tokens, media), state = foreign
                loaded = model.engine.adapters
                saved = CacheEntry(tokens, adapter_set(default_set(loaded), loaded, tokens), media=media, state=state)
            if saved.media and model.media is None:  # they could not be recomputed
                raise InvalidRequest(NO_PROJECTOR)
            return saved, size
        except InvalidRequest as error:
            raise _refusal(error) from None


def _refusal(error: InvalidRequest) -> InvalidRequest:
    return InvalidRequest(f"Unable to restore slot: {error.message}", error.param or "filename")
