"""Settings that do nothing beside the others of their model, in words for the log.

They are no mistakes: under the YAML's ``defaults`` they are for the models that use them.
"""

from collections.abc import Iterator

from server.options.model import ModelDefaults

_DISK = ("cache_disk_path", "cache_disk is 0, so nothing is kept on disk")
_NO_DRAFT = "there is no draft_model"
_NO_GUESSES = "spec_type is none, so nothing is guessed"


def without_effect(model: ModelDefaults) -> Iterator[str]:
    """Each such setting that was given, and why it has no effect."""
    given = model.model_fields_set
    if model.cache_disk_path is not None and not model.cache_disk:
        yield _because(*_DISK)
    for name in sorted(given):
        if model.spec_type == "none" and name.startswith("spec_ngram"):
            yield _because(name, _NO_GUESSES)
        elif name.startswith(("spec_draft", "draft_")) and name != "draft_model":
            if model.draft_model is None:
                yield _because(name, _NO_DRAFT)
            elif model.spec_type == "none":
                yield _because(name, _NO_GUESSES)
    if model.spec_type == "none" and model.draft_model is not None:
        yield _because("draft_model", _NO_GUESSES)


def _because(name: str, reason: str) -> str:
    return f"{name} has no effect: {reason}"
