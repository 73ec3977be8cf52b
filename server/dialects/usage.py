"""Token counts of a reply, and their format in each API."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from server.dialects.common import Json
from server.engine.request import Finished


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of all prompts, choices and rounds. ``prompt`` includes ``cached``, ``completion`` ``reasoning``."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0

    @classmethod
    def of(cls, ends: Iterable[tuple[int, Finished]], n_reasoning: int = 0) -> Self:
        """Return the counts of choices, given with the indices of their prompts. Each prompt counts once."""
        prompts: dict[int, Finished] = {}
        n_predicted = 0
        for prompt, end in ends:
            prompts.setdefault(prompt, end)
            n_predicted += end.n_predicted
        firsts = prompts.values()
        return cls(sum(end.n_prompt for end in firsts), sum(end.n_cached for end in firsts), n_predicted, n_reasoning)

    @classmethod
    def read(cls, usage: object) -> Self:
        """Parse ``usage`` of OpenAI's or Anthropic's API. Anything else has no counts."""
        if not isinstance(usage, dict):
            return cls()
        before = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
        after = usage.get("output_tokens_details") or usage.get("completion_tokens_details") or {}
        return cls(
            usage.get("input_tokens") or usage.get("prompt_tokens") or 0,
            before.get("cached_tokens", 0),
            usage.get("output_tokens") or usage.get("completion_tokens") or 0,
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
        """Return ``usage`` of chat and text completions, with reasoning tokens if there are any."""
        usage: Json = {
            "completion_tokens": self.completion,
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        if self.reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return usage

    def responses(self) -> Json:
        """Return ``usage`` of OpenAI's Responses. Cache writes have no price here, so they are not counted."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }

    def anthropic(self) -> Json:
        """Return ``usage`` of Anthropic's Messages, where ``input_tokens`` exclude cached tokens.

        Cache writes have no price here, so ``cache_creation_input_tokens`` is 0.
        """
        usage: Json = {
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "input_tokens": self.prompt - self.cached,
            "output_tokens": self.completion,
        }
        if self.reasoning:
            usage["output_tokens_details"] = {"thinking_tokens": self.reasoning}
        return usage

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
