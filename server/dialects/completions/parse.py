"""OpenAI's Completions: parses the body to one engine request per prompt; `write` creates the reply.

The rules are llama-server's (tools/server/server-common.cpp, oaicompat_completion_params_parse). In addition, ``echo``,
``suffix``, ``best_of`` and ``response_format`` are supported.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from server.dialects.common import Header
from server.dialects.completions.prompt import PromptRequest, UntokenizedPrompt, prompt_media, read_prompts
from server.dialects.completions.write import CompletionWriter, Echo, echo
from server.dialects.constraints import read_response_format
from server.dialects.dialect import Context, Dialect, Generation
from server.dialects.fields import Prompt, Whole, field_error, out_of_range, parse
from server.dialects.generation import MAX_CHOICES, MAX_PROBS, GenerationFields, Logprobs, reject_reasoning_fields
from server.dialects.native.fim import suffix_prompt
from server.dialects.native.write import verbose
from server.dialects.warnings import unused_fields
from server.engine.media import MediaPrompt
from server.pool.model import LoadedModel
from server.structured.lazy import compiled


class CompletionBody(GenerationFields):
    """The body of ``POST /v1/completions``."""

    prompt: Prompt = None
    echo: bool | None = None
    logprobs: bool | Annotated[int, Field(ge=0, le=MAX_PROBS)] | None = None
    best_of: Whole | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(PromptRequest):
    options: CompletionBody
    best: int  # number of choices to return, by the mean log probability of their tokens; 0 = all
    shows_logprobs: bool
    lists: bool  # log probabilities are also returned in OpenAI's lists

    def generation(self, context: Context) -> Generation:
        model, body = context.model, self.options
        header = Header(model.spec.id)
        response_format = read_response_format(body) or model.spec.shape
        constraint = compiled(response_format, body.lazy, model)
        tokens = self._fim_prompts(model) if body.suffix else self.tokens(context)
        requests = self.requests(context, header.id, tokens, constraint)
        echoes = [self._echo(*each, model) for each in zip(self.prompts, tokens, strict=True)]
        writer = CompletionWriter(self, header, echoes)
        return verbose(Generation(requests, writer), body, context, response_format)

    def _fim_prompts(self, model: LoadedModel) -> list[MediaPrompt]:
        """Return the infill tokens of each prompt and the ``suffix``. Raises `InvalidRequest`."""
        tokens = []
        for prompt in self.prompts:
            if prompt.media:
                raise field_error("suffix", "can't be used with media")
            tokens.append(MediaPrompt(suffix_prompt(model, prompt.tokens(model.vocab), self.options.suffix or "")))
        return tokens

    def _echo(self, prompt: UntokenizedPrompt, tokens: MediaPrompt, model: LoadedModel) -> Echo:
        if not self.options.echo:
            return Echo()
        text, marker = prompt.content, model.media.marker if prompt.media and model.media is not None else ""
        if not isinstance(text, str):
            text = model.vocab.detokenize(tokens.tokens).decode("utf-8", "replace")
        return echo(model.vocab, text, tokens, marker) if self.logprobs.prompt else Echo(text)


def parse_completion(given: dict[str, Any]) -> CompletionRequest:
    body = parse(CompletionBody, given)
    n, logprobs = body.n_choices, _logprobs(body)
    n_generated = max(body.best_of or n, n)
    selects_best, scores_prompt = n_generated > n >= 1, bool(body.echo) and logprobs.enabled
    if body.best_of is not None and body.best_of < n:
        raise field_error("best_of", f"must be at least n ({n}), got {body.best_of}")
    if selects_best and body.stream:
        raise field_error("best_of", "can't be streamed: which choices are best shows at the end")
    if selects_best and n_generated > MAX_CHOICES:
        raise field_error("best_of", out_of_range(1, MAX_CHOICES, n_generated))
    reject_reasoning_fields(body)
    if scores_prompt:
        if body.suffix:
            raise field_error("echo", "can't be used with logprobs and suffix: the prompt is not what the model reads")
        if body.post_sampling_probs:
            raise field_error("echo", "can't be used with post_sampling_probs: a prompt's tokens are not sampled")
    prompts = read_prompts(body.prompt)
    n_fields = {"n": n_generated, "n_cmpl": None} if selects_best else {}
    # In OpenAI's API, logprobs is a number; in llama-server's, a boolean or n_probs.
    is_number = body.logprobs is not None and not isinstance(body.logprobs, bool) and body.n_probs is None
    return CompletionRequest(
        options=body.model_copy(update={"prompt": None, **n_fields}),
        media=prompt_media(prompts),
        warnings=unused_fields(given, CompletionBody),
        logprobs=replace(logprobs, enabled=logprobs.enabled or selects_best, prompt=scores_prompt),
        prompts=prompts,
        best=n if selects_best else 0,
        shows_logprobs=logprobs.enabled,
        lists=(is_number and not body.post_sampling_probs) or scores_prompt,
    )


COMPLETIONS = Dialect(parse_completion)


def _logprobs(body: CompletionBody) -> Logprobs:
    """Return the setting for ``logprobs``, where true means 1 as in llama-server; ``n_probs`` has precedence."""
    if body.n_probs is not None:
        return Logprobs.of(body.n_probs)
    if body.logprobs is None or body.logprobs is False:
        return Logprobs()
    return Logprobs(True, int(body.logprobs))
