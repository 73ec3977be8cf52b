"""The body of llama-server's own completions: ``POST /completion``, ``/completions`` and ``/infill``."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, WithJsonSchema

from server.dialects.fields import Object, Prompt, Strings, json_type
from server.dialects.generation import MAX_PROBS, GenerationFields, Logprobs
from server.structured.response_format import ANY_OBJECT

MAX_RESPONSE_FIELDS = 256
MAX_PATH_CHARS = 256


def read_logprobs(value: object) -> int:
    """Return a count; a boolean is 0 or 1. Raises ValueError with the reason."""
    if not isinstance(value, int):
        raise ValueError(f"type must be number, but is {json_type(value)}")
    if value > MAX_PROBS:
        raise ValueError(f"must be at most {MAX_PROBS}, got {value}")
    return int(value)


def read_paths(value: object) -> tuple[str, ...]:
    """Return the paths of response fields. Raises ValueError with the reason."""
    if not isinstance(value, list):
        raise ValueError(f"type must be array, but is {json_type(value)}")
    if len(value) > MAX_RESPONSE_FIELDS:
        raise ValueError(f"must have at most {MAX_RESPONSE_FIELDS} entries")
    for path in value:
        if not isinstance(path, str):
            raise ValueError(f"type must be string, but is {json_type(path)}")
        if len(path) > MAX_PATH_CHARS:
            raise ValueError(f"an entry must have at most {MAX_PATH_CHARS} characters")
    return tuple(value)


class NativeBody(GenerationFields):
    """Fields of a native completion in addition to the common ones. ``response_format`` has no effect."""

    prompt: Prompt = None
    response_fields: Annotated[Strings, AfterValidator(read_paths)] = None
    logprobs: Annotated[Any, AfterValidator(read_logprobs), WithJsonSchema({"type": ["integer", "boolean"]})] = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    response_format: Object = None
    reasoning_budget_start_tag: str | None = None
    reasoning_budget_end_tag: str | None = None
    reasoning_budget_end_tags: list[str] | None = None
    generation_prompt: str | None = None

    @property
    def wanted_probs(self) -> Logprobs:
        """``n_probs``, or ``logprobs``, which llama-server takes as another name of it."""
        n = self.n_probs if self.n_probs is not None else self.logprobs or 0
        return Logprobs(n > 0, max(n, 0))

    @property
    def schema_wanted(self) -> object | None:
        """The JSON Schema that the output must match; a grammar counts before it, as in llama-server."""
        if self.grammar or self.json_schema is None:
            return None
        return ANY_OBJECT if self.json_schema == {} else self.json_schema

    @property
    def thinking_tags(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the text that opens reasoning, and the texts that close it, the first of which is forced at the
        budget.

        None if the request has no tags, so that reasoning can't be detected.
        """
        one = [self.reasoning_budget_end_tag or ""]
        ends = tuple(filter(None, one if self.reasoning_budget_end_tags is None else self.reasoning_budget_end_tags))
        return (self.reasoning_budget_start_tag, ends) if self.reasoning_budget_start_tag and ends else None
