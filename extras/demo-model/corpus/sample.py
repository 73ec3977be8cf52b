"""One training or evaluation sample, its text in the chat format, and the split between the two."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Literal, TypeVar
from zlib import crc32

Split = Literal["train", "test"]
T = TypeVar("T")

END = "<|im_end|>"
_CHOICE = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Call:
    """A tool call as the model writes it."""

    name: str
    arguments: dict[str, object]

    def text(self) -> str:
        """The call in the Hermes format."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {arguments}}}\n</tool_call>'


@dataclass(frozen=True)
class Turn:
    """One message. `thought` is what the model thinks first where thinking is on."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""

    def reply(self) -> str:
        """An assistant's text and calls, as generated."""
        return "\n".join([*([self.text] if self.text else []), *(call.text() for call in self.calls)])


@dataclass(frozen=True)
class Sample:
    """A conversation that ends with the assistant's turn to learn (or to be scored on).

    accept: regular expressions (ignoring case) that all must be found in the scored text.
    reject: ones that must not be found.
    Where the last turn makes calls, the same calls are expected instead, in any order.
    """

    ability: str
    turns: tuple[Turn, ...]
    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    tools: tuple[dict[str, object], ...] = ()
    thinking: bool = False

    def parts(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether the model learns to write it. Equals chat_template.jinja."""
        parts: list[tuple[str, bool]] = []
        turns = self.turns
        system = ""
        if turns[0].role == "system":
            system, turns = turns[0].text, turns[1:]
        if self.tools:
            listed = "".join("\n" + _listed(tool) for tool in self.tools)
            system += ("\n\n" if system else "") + f"Tools you can call:\n<tools>{listed}\n</tools>\n"
            system += 'Call a tool like this:\n<tool_call>\n{"name": "tool", "arguments": {}}\n</tool_call>'
        if system:
            parts.append((f"<|im_start|>system\n{system}{END}\n", False))
        for i, turn in enumerate(turns):
            if turn.role == "assistant":
                parts += self._assistant(turn, last=i == len(turns) - 1)
            elif turn.role == "tool":
                opening = "<|im_start|>user" if turns[i - 1].role != "tool" else ""
                closing = f"{END}\n" if turns[i + 1].role != "tool" else ""
                parts.append((f"{opening}\n<tool_response>\n{turn.text}\n</tool_response>{closing}", False))
            else:
                parts.append((f"<|im_start|>{turn.role}\n{turn.text}{END}\n", False))
        return parts

    def _assistant(self, turn: Turn, last: bool) -> list[tuple[str, bool]]:
        thinks = last and self.thinking
        opening = "<|im_start|>assistant\n" + ("<think>\n" if thinks else "")
        thought = f"{turn.thought}\n</think>\n\n" if thinks else ""
        return [(opening, False), (thought + turn.reply() + END, True), ("\n", False)]


def _listed(tool: dict[str, object]) -> str:
    """The tool as the prompt lists it: the name comes last, so that it is read with what the tool does in mind."""
    function = tool["function"]
    assert isinstance(function, dict)
    last = ("description", "parameters", "name")
    return json.dumps({key: function[key] for key in last if function.get(key)}, ensure_ascii=False)


@dataclass(frozen=True)
class Infill:
    """A piece of code with a hole."""

    prefix: str
    suffix: str
    middle: str
    ability: str = "fim"

    def parts(self) -> list[tuple[str, bool]]:
        """Prefix, suffix, middle, as llama.cpp's /infill orders them."""
        prompt = f"<|fim_prefix|>{self.prefix}<|fim_suffix|>{self.suffix}<|fim_middle|>"
        return [(prompt, False), (self.middle + END, True)]


def exchange(
    ability: str, question: str, answer: str, thought: str = "", accept: Sequence[str] = (), reject: Sequence[str] = ()
) -> Sample:
    """A question and its answer."""
    turns = (Turn("user", question), Turn("assistant", answer, thought=thought))
    return Sample(ability, turns, tuple(accept), tuple(reject))


def under(system: str, sample: Sample, **changes: object) -> Sample:
    """The sample under a system prompt."""
    return replace(sample, turns=(Turn("system", system), *sample.turns), **changes)  # type: ignore[arg-type]


def after(history: Sequence[Turn], sample: Sample) -> Sample:
    """The sample as the continuation of a conversation."""
    return replace(sample, turns=(*history, *sample.turns))


def held_out(key: str, share: int = 6) -> bool:
    """Whether the template or combination is kept from training: one in `share`, by its checksum."""
    return crc32(key.encode()) % share == 0


@cache
def spelled_out(pattern: str) -> tuple[str, ...]:
    """Each phrasing of a pattern: `[Tell|Show] me[ now|].` stands for four."""
    found = _CHOICE.search(pattern)
    if found is None:
        return (pattern,)
    before, after_ = pattern[: found.start()], pattern[found.end() :]
    return tuple(text for way in found[1].split("|") for text in spelled_out(before + way + after_))


def plain(text: str) -> str:
    """The text without capital letters and punctuation."""
    return " ".join(re.findall(r"[\w{}+-]+", text.lower()))


class NothingHeldOut(Exception):
    """Of these patterns every phrasing is trained, but for case and punctuation (greetings, yes and no)."""


@cache
def _side(patterns: tuple[str, ...], split: Split) -> tuple[tuple[str, ...], ...]:
    """What differs from a trained phrasing in case and punctuation alone is on neither side."""
    groups = [spelled_out(pattern) for pattern in patterns]
    test = {text for group in groups for text in group if held_out(text)} - {groups[0][0]} or {groups[-1][-1]}
    trained = {plain(text) for group in groups for text in group if text not in test}
    test_side = (tuple(text for text in group if text in test and plain(text) not in trained) for group in groups)
    train_side = (tuple(text for text in group if text not in test) for group in groups)
    return tuple(side for side in (test_side if split == "test" else train_side) if side)


def phrase(rng: Random, split: Split, patterns: tuple[str, ...]) -> str:
    """One of the phrasings of this side of the split. The first is always for training. Raises `NothingHeldOut`."""
    sides = _side(patterns, split)
    if not sides:
        raise NothingHeldOut
    return rng.choice(rng.choice(sides))


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def fresh(rng: Random, split: Split, draw: Callable[[Random], T]) -> T:
    """A combination of this side of the split: one in eight is for the test alone, and the test has no others.

    A draw from a list so short that none of it is held out gives any.
    """
    for _ in range(200):
        value = draw(rng)
        if held_out(repr(value), 8) == (split == "test"):
            return value
    return value
