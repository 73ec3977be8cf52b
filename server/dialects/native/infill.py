"""``POST /infill``: a native completion of the gap between a prefix and a suffix (llama.cpp server-context.cpp,
post_infill)."""

from dataclasses import dataclass
from typing import Any

from server.dialects.completions.prompt import Mixed, read_mixed, tokenize_mixed
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.fields import Objects, Prompt, parse
from server.dialects.generation import INNER_FIELDS, refuse_thinking
from server.dialects.native.fim import Extra, Gap, extra_tokens, fim_tokens, fitting_extra, require_fim
from server.dialects.native.parse import generation, ignored_format
from server.dialects.native.schemas import NativeBody
from server.dialects.warnings import Fields, fields_of, unused_fields
from server.engine.media import MediaPrompt
from server.errors import InvalidRequest
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel

MAX_FILES = 1024


class InfillBody(NativeBody):
    """The body of ``POST /infill``."""

    input_prefix: Prompt = None
    input_suffix: Prompt = None
    input_extra: Objects = None


FIELDS = INNER_FIELDS | fields_of(InfillBody, input_extra=Fields("filename text"))
"""The fields of the body, at any depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillRequest(ParsedRequest):
    """An infill request before a model tokenizes it."""

    options: InfillBody
    prefix: Mixed
    suffix: Mixed
    prompt: str
    files: list[Extra]

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the request and the writer of its reply; blocking, for a thread.

        Raises `InvalidRequest`, and `NotSupported` for a model without the tokens for it.
        """
        require_fim(model.vocab)
        return generation(self.options, lambda: [MediaPrompt(infill_tokens(self, model))], model, caller)


def parse_infill(given: dict[str, Any]) -> InfillRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    body = parse(InfillBody, given)
    refuse_thinking(body)
    if body.prompt is not None and not isinstance(body.prompt, str):
        raise InvalidRequest('"prompt" must be a string', "prompt")
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise InvalidRequest(f'"{name}" is required', name)
    options = body.model_copy(update=dict.fromkeys(("prompt", "input_prefix", "input_suffix", "input_extra")))
    return InfillRequest(
        options=options,
        warnings=unused_fields(given, FIELDS, ignored_format(body)),
        prefix=read_mixed(body.input_prefix, "input_prefix"),
        suffix=read_mixed(body.input_suffix, "input_suffix"),
        prompt=body.prompt or "",
        files=_read_files(body.input_extra),
    )


INFILL = Dialect(parse_infill)


def _read_files(value: object) -> list[Extra]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest('"input_extra" must be an array of {"filename": string, "text": string}', "input_extra")
    if len(value) > MAX_FILES:
        raise InvalidRequest(f'"input_extra" must have at most {MAX_FILES} entries', "input_extra")
    return [_file(entry, f"input_extra.{index}") for index, entry in enumerate(value)]


def _file(entry: object, path: str) -> Extra:
    text = entry.get("text") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(text, str):
        raise InvalidRequest('extra_context chunk must contain a "text" field with a string value', f"{path}.text")
    filename = entry.get("filename", "tmp")
    if not isinstance(filename, str):
        raise InvalidRequest('extra_context chunk\'s "filename" field must be a string', f"{path}.filename")
    return Extra(text, filename)


def infill_tokens(infill: InfillRequest, model: LoadedModel) -> list[int]:
    """Return the prompt, cut to a batch: of a long prefix keep the end, of the suffix and the files the start and the
    end.
    """
    vocab, spec = model.vocab, model.spec
    gap = Gap(
        prefix=tokenize_mixed(vocab, infill.prefix, "input_prefix", add_special=False, parse_special=False),
        suffix=tokenize_mixed(vocab, infill.suffix, "input_suffix", add_special=False, parse_special=False),
        prompt=vocab.tokenize(infill.prompt, add_special=False, parse_special=True),
    )
    extra = fitting_extra(
        extra_tokens(vocab, infill.files),
        n_ctx=model.engine.n_ctx_seq,
        n_batch=spec.native.n_batch,
        n_predict=spec.n_predict,
    )
    return fim_tokens(vocab, gap.cut(spec.native.n_batch), extra, suffix_first=spec.spm_infill)
