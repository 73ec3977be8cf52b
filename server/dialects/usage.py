"""Token counts of a reply, and each API's table of them: a new count is a field, its sum and its entries here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from server.dialects.common import Json
from server.engine.request import Finished


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all prompts, choices and rounds of a reply. ``cached`` prompt tokens and ``reasoning`` are parts."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0

    @classmethod
    def of(cls, ends: Iterable[tuple[int, Finished]], n_reasoning: int = 0) -> Self:
        """Return the counts of choices, each with the number of its prompt. A prompt of several choices counts once."""
        prompts: dict[int, Finished] = {}
        n_predicted = 0
        for prompt, end in ends:
            prompts.setdefault(prompt, end)
            n_predicted += end.n_predicted
        firsts = prompts.values()
        return cls(sum(end.n_prompt for end in firsts), sum(end.n_cached for end in firsts), n_predicted, n_reasoning)

    @classmethod
    def read(cls, shown: object) -> Self:
        """Return the counts of a reply's ``usage`` as OpenAI's or Anthropic's API shows it; none of anything else."""
        if not isinstance(shown, dict):
            return cls()
        before = shown.get("input_tokens_details") or shown.get("prompt_tokens_details") or {}
        after = shown.get("output_tokens_details") or shown.get("completion_tokens_details") or {}
        return cls(
            shown.get("input_tokens") or shown.get("prompt_tokens") or 0,
            before.get("cached_tokens", 0),
            shown.get("output_tokens") or shown.get("completion_tokens") or 0,
            after.get("reasoning_tokens", 0),
        )

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
            self.reasoning + other.reasoning,
        )

    def openai(self) -> Json:
        """Return ``usage`` of chat and text completions. Reasoning tokens are listed if there are any."""
        shown: Json = {
            "completion_tokens": self.completion,
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        if self.reasoning:
            shown["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return shown

    def responses(self) -> Json:
        """Return ``usage`` of OpenAI's Responses. There are no prices, so no token counts as written to a cache."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }

    def anthropic(self) -> Json:
        """Return ``usage`` of Anthropic's Messages, where ``input_tokens`` exclude cached tokens.

        Every computed token may be cached at no cost, so ``cache_creation_input_tokens`` count as input tokens.
        """
        shown: Json = {
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "input_tokens": self.prompt - self.cached,
            "output_tokens": self.completion,
        }
        if self.reasoning:
            shown["output_tokens_details"] = {"thinking_tokens": self.reasoning}
        return shown

    def transcript(self, n_audio: int) -> Json:
        """Return ``usage`` of a transcript: llama-server's keys and OpenAI's details."""
        return {
            "type": "tokens",
            "input_tokens": self.prompt,
            "output_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "input_tokens_details": {"cached_tokens": self.cached},
            "input_token_details": {"audio_tokens": n_audio, "text_tokens": self.prompt - n_audio},
        }
