"""Settings that do nothing beside the others of their model, in words for the log.

They are no mistakes: under the YAML's ``defaults`` they are for the models that use them.
"""

from collections.abc import Iterator
from types import MappingProxyType

from server.engine.params import LOOKUP
from server.options.specs import spec_type
from server.options.table.model import ModelDefaults
from server.templates.built_in import complaint, is_name, names

_DISK = ("cache_disk_path", "cache_disk is 0, so nothing is kept on disk")
_NO_DRAFT = "there is no draft_model"
_OF_KINDS = MappingProxyType(
    {
        "spec_lookup": LOOKUP,
        "spec_ngram_simple": "ngram-simple",
        "spec_ngram_map_k_": "ngram-map-k",
        "spec_ngram_map_k4v": "ngram-map-k4v",
        "spec_ngram_mod": "ngram-mod",
        "lookup_cache": "ngram-cache",
    }
)
"""The kind of guesses that options of these names are for."""


def without_effect(model: ModelDefaults) -> Iterator[str]:
    """Each such setting that was given, and why it has no effect."""
    given, kinds = model.model_fields_set, spec_type(model)
    no_guesses = f"spec_type {kinds} does not use it"
    if is_name(model.chat_template) and model.chat_template not in names():
        yield f"chat_template shows no message: {complaint(model.chat_template)}"
    if model.cache_disk_path is not None and not model.cache_disk:
        yield _because(*_DISK)
    if model.cache_disk_shared and not model.cache_disk:
        yield _because("cache_disk_shared", _DISK[1])
    for name in sorted(given):
        kind = next((kind for start, kind in _OF_KINDS.items() if name.startswith(start)), "")
        if kind and kind not in kinds.split(","):
            yield _because(name, no_guesses)
        elif name.startswith(("spec_draft", "draft_")) and name not in ("draft_model", "draft_hf"):
            if name.startswith("spec_draft") and "draft-mtp" in kinds:
                continue
            if not model.has_draft:
                yield _because(name, _NO_DRAFT)
            elif "draft-simple" not in kinds:
                yield _because(name, no_guesses)
    if model.spec_synth_rates or model.spec_synth_len:
        yield "spec_synth_rates or spec_synth_len is set: replies are not the model's, and worth nothing but their time"
    if "draft-simple" not in kinds and model.has_draft:
        yield _because("draft_hf" if model.draft_hf else "draft_model", no_guesses)


def _because(name: str, reason: str) -> str:
    return f"{name} has no effect: {reason}"
