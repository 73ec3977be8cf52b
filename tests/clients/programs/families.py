"""How models of a family write a message, derived from the chat template of the family.

The template is rendered with the message, and up to the generation prompt. The difference is what a model of the family
would generate, so no tool-call markup is written here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

USER = {"role": "user", "content": "?"}
CONTROL = re.compile(r"<\|[^|<>\s]+\|>|</?s>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>|<｜[^｜]+｜>")
"""Matches the control tokens in the templates of `FAMILIES`."""


@dataclass(frozen=True)
class Family:
    """A chat template, and the special tokens of the vocabulary."""

    file: str
    bos: str
    ends: tuple[str, ...]  # tokens that end a generation; the first is EOS
    source: str = ""  # of the template

    @cached_property
    def control(self) -> tuple[str, ...]:
        """Return the texts that are one token each."""
        texts = dict.fromkeys((self.bos, *self.ends, *CONTROL.findall(self.source)))
        return tuple(text for text in texts if text)

    def turn(self, message: Mapping[str, Any], tools: list[dict[str, Any]] | None = None) -> str:
        """Return what a model generates for `message`, with the token that ends its turn."""
        calls = message.get("tool_calls", ())
        try:
            return self._turn(message, tools)
        except jinja2.TemplateError:
            if len(calls) < 2:
                raise
        # Llama's template accepts one call in a message, but its models write several, one after another.
        turns = [self._turn({**message, "tool_calls": [call]}, tools) for call in calls]
        end = next(end for end in self.ends if turns[0].endswith(end))
        return "; ".join(turn.removesuffix(end) for turn in turns) + end

    def _turn(self, message: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> str:
        prompt = self._render([USER], tools, generation_prompt=True)
        assistant = {"role": "assistant", "content": "", **message}
        whole = self._render([USER, assistant], tools, generation_prompt=False)
        turn = whole[_common_chars(prompt, whole) :] if prompt not in whole else whole.split(prompt, 1)[1]
        ends = [at + len(end) for end in self.ends if (at := turn.find(end)) >= 0]
        return turn[: min(ends)] if ends else turn

    def _render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, generation_prompt: bool
    ) -> str:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda _: "2026-11-22"
        return environment.from_string(self.source).render(
            messages=messages,
            tools=tools,
            add_generation_prompt=generation_prompt,
            bos_token=self.bos,
            eos_token=self.ends[0],
        )


FAMILIES: Mapping[str, Family] = {
    "qwen3": Family("Qwen-Qwen3-0.6B.jinja", "", ("<|im_end|>", "<|endoftext|>")),
    "qwen3.5": Family("Qwen3.5-4B.jinja", "", ("<|im_end|>", "<|endoftext|>")),
    "qwen3-coder": Family("Qwen3-Coder.jinja", "", ("<|im_end|>", "<|endoftext|>")),
    "llama": Family(
        "meta-llama-Llama-3.1-8B-Instruct.jinja", "<|begin_of_text|>", ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    ),
    "mistral": Family("Mistral-Small-3.2-24B-Instruct-2506.jinja", "<s>", ("</s>",)),
    "gpt-oss": Family("openai-gpt-oss-120b.jinja", "<|startoftext|>", ("<|return|>", "<|call|>", "<|endoftext|>")),
}


def family(name: str, templates: Path) -> Family:
    """Return one of `FAMILIES` with its template from the folder `templates`."""
    found = FAMILIES[name]
    return replace(found, source=(templates / found.file).read_text(encoding="utf-8"))


def _common_chars(left: str, right: str) -> int:
    """Return the length of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _tojson(value: object, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)
