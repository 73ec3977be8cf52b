"""Saves a slot of a model to a file and brings it back, here or in another process of the same configuration."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from server.engine.cache_scope import cache_scope, owner_of
from server.engine.lora import NEVER, AdapterSet, default_set
from server.engine.media import Spans
from server.engine.prefix_cache import SlotState
from server.errors import InvalidRequest
from server.pool.model import LoadedModel
from server.pool.saved.slot_file import encode, open_saved, read_foreign
from server.pool.saved.slot_files import SavedFiles
from server.pool.saved.slot_origin import NO_PROJECTOR, describe, tuning_here

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """What was saved or restored; ``ms`` with the wait for the slot."""

    n_tokens: int
    n_bytes: int
    ms: float


async def save(model: LoadedModel, id_slot: int, files: SavedFiles, name: str, owner: str = "") -> Moved:
    """Save what the slot holds, once it is idle. Raises `InvalidRequest`, `InternalError`, and `PermissionDenied` where
    another than `owner` had it computed."""
    started = time.perf_counter()
    saved = await model.engine.save_slot(id_slot, owner)
    description = describe(model, saved)
    n_bytes = await asyncio.to_thread(lambda: files.write(name, encode(saved, description, files.secret)))
    return Moved(len(saved.tokens), n_bytes, _ms_since(started))


async def restore(model: LoadedModel, id_slot: int, files: SavedFiles, name: str, owner: str = "") -> Moved:
    """Replace what the slot holds, once it is idle; it is `owner`'s from then on.

    Raises `InvalidRequest` that says why the file is refused; the slot is as before then, or empty when it was the
    library that refused.
    """
    started = time.perf_counter()
    saved, n_bytes = await asyncio.to_thread(_read, model, files, name)
    saved = replace(saved, adapter_set=replace(saved.adapter_set, scope=_scope_here(saved.adapter_set.scope, owner)))
    try:
        await model.engine.restore_slot(id_slot, saved)
    except InvalidRequest as error:
        raise _refusal(error) from None
    return Moved(len(saved.tokens), n_bytes, _ms_since(started))


def _scope_here(scope: str, owner: str) -> str:
    """The scope of what `owner` restores: as it was saved, unless it was nobody's. Raises `InvalidRequest`."""
    if owner_of(scope) == owner:
        return scope
    if owner_of(scope):
        raise _refusal(InvalidRequest("it was saved for another API key"))
    return cache_scope("key", owner, "")


def _read(model: LoadedModel, files: SavedFiles, name: str) -> tuple[SlotState, int]:
    with files.opened(name) as (file, size):
        try:
            foreign = None if files.secret else read_foreign(file, size, model.vocab.n_tokens)
            if foreign is not None:
                logger.warning("%s was not saved here: nothing proves that this model and these settings fit it", name)
                (tokens, media), state = foreign
                _check_projector(model, media)
                adapter_set = AdapterSet(default_set(model.engine.adapters), NEVER)
                return SlotState(tokens, state, adapter_set, NEVER, media=media), size
            file.seek(0)
            found = open_saved(file, size, files.secret)
            saved = found.read(model.vocab.n_tokens, tuning_here(model, found.description))
            _check_projector(model, saved.media)
            return saved, size
        except InvalidRequest as error:
            raise _refusal(error) from None


def _check_projector(model: LoadedModel, media: Spans) -> None:
    """Without one nothing of these media could be computed again. Raises `InvalidRequest`."""
    if media and model.media is None:
        raise InvalidRequest(NO_PROJECTOR)


def _refusal(error: InvalidRequest) -> InvalidRequest:
    return InvalidRequest(f"Unable to restore slot: {error.message}", error.param or "filename")


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
