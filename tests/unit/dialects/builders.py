"""Builders: a model without weights, engine events, parsed SSE chunks, scripted parsers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from server.chat.conversation import Conversation, ReasoningSettings, Tools
from server.chat.prepare import decide
from server.chat.prompt import Prompt
from server.dialects.chat.parse import ChatTools
from server.dialects.common import Header
from server.dialects.constraints import ConstraintFields, read_response_format
from server.dialects.fields import parse
from server.engine.lora import Adapter
from server.engine.request import (
    Finished,
    FinishReason,
    SamplingParams,
    Started,
    Text,
    Timings,
    TokenLogprob,
)
from server.formats.parsing.pieces import ContentText, Piece
from server.formats.parsing.reasoning import open_reasoning
from server.pool.protocols import MediaReader
from server.pool.spec import ChatParams, LoadParams, ModelSpec
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.reasoning_end import ReasoningBudget
from tests.support.fakes import CHATML, EOS, FakeVocab
from tests.unit.structured.builders import BYTES, takes

HEADER = Header("demo", "chatcmpl-1", 1700000000)
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"b": {"const": 1}}, "required": ["b"], "additionalProperties": False}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


class PieceVocab(FakeVocab):
    """`FakeVocab` in which the tokens of `pieces` have these texts; `control` has control tokens by their text."""

    def __init__(self, pieces: Mapping[int, bytes], control: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self._pieces, self._control = pieces, control or {}

    def piece(self, token: int, *, special: bool = True) -> bytes:
        return self._pieces[token] if token in self._pieces else super().piece(token, special=special)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if parse_special and text in self._control:
            return [self._control[text]]
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


@dataclass
class FakeConstraint:
    """A constraint that records what it was compiled from."""

    kind: str
    source: Any = None

    def fork(self) -> "FakeConstraint":
        return FakeConstraint(self.kind, self.source)


class FakeCompiler:
    """A grammar compiler that returns `FakeConstraint`s."""

    def json_schema(self, schema: Any) -> FakeConstraint:
        return FakeConstraint("json_schema", schema)

    def gbnf(self, text: str) -> FakeConstraint:
        return FakeConstraint("gbnf", text)

    def own_lark(self, text: str) -> MatcherConstraint:
        return BYTES.own_lark(text)

    def control_token(self, text: str) -> int | None:
        return BYTES.control_token(text)


def make_model(
    *,
    sampling: SamplingParams | None = None,
    chat: ChatParams | None = None,
    n_predict: int = -1,
    n_slots: int = 4,
    n_ctx: int = 256,
    n_batch: int = 2048,
    template: str = CHATML,
    adapters: Sequence[Adapter] = (),
    fim: str = "file",
    spm_infill: bool = False,
    media: MediaReader | None = None,
    vocab: FakeVocab | None = None,
    compiles: bool = False,
) -> Any:
    """Return the attributes of a `LoadedModel` that dialects read, without an engine.

    ``compiles``: grammars are compiled by llguidance instead of `FakeCompiler`.
    """
    from server.templates.template import ChatTemplate

    vocab = vocab or FakeVocab(fim)
    return SimpleNamespace(
        spec=ModelSpec(
            id="demo",
            path=Path("demo.gguf"),
            sampling=sampling or SamplingParams(),
            chat=chat or ChatParams(),
            n_predict=n_predict,
            native=LoadParams(n_batch=n_batch),
            spm_infill=spm_infill,
        ),
        vocab=vocab,
        media=media,
        engine=SimpleNamespace(n_slots=n_slots, n_ctx_seq=n_ctx, adapters=adapters),
        template=ChatTemplate(template, bos_token="<s>", eos_token="</s>"),
        grammar=GrammarCompiler(vocab) if compiles else FakeCompiler(),
    )


def started(index: int = 0, *, n_prompt: int = 5, n_cached: int = 0) -> Started:
    return Started(index, n_prompt, n_cached)


def text(value: str, index: int = 0, *, logprobs: Sequence[TokenLogprob] = (), timed: bool = False) -> Text:
    return Text(index, value, tuple(value.encode()), tuple(logprobs), Timings(predicted_n=1) if timed else None)


def finished(
    index: int = 0,
    reason: FinishReason = FinishReason.EOS,
    *,
    n_prompt: int = 5,
    n_cached: int = 0,
    n_predicted: int = 3,
    stopping_word: str = "",
) -> Finished:
    timings = Timings(n_cached, n_prompt - n_cached, 10.0, n_predicted, 20.0)
    return Finished(index, reason, stopping_word, n_prompt, n_cached, n_predicted, timings, 0, 7)


def chunks(raw: Sequence[bytes]) -> list[dict[str, Any]]:
    """Parse events, each of which must be one whole SSE event. [DONE] is dropped."""
    parsed = []
    for event in raw:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2
        if event != b"data: [DONE]\n\n":
            parsed.append(orjson.loads(event[6:]))
    return parsed


def constraint_for(
    model: Any,
    prompt_text: str = "",
    *,
    tools: Tools | None = None,
    may_reason: bool = True,
    opens_turn: bool = True,
    prefilled: str = "",
    reasoning_format: str = "auto",
    **fields: object,
) -> Constraint | None:
    """Return the constraint of a reply to the prompt `prompt_text`, for a body with these fields."""
    body = parse(ConstraintFields, fields)
    reasoning = ReasoningSettings(format=reasoning_format)
    conversation = Conversation((), tools or Tools(), reasoning, read_response_format(body), body.lazy)
    chat_format = model.template.chat_format(tools=bool(conversation.tools.tools))
    begun = open_reasoning(prompt_text, chat_format.reasoning_tags)
    budget = ReasoningBudget()
    prompt = Prompt((), prompt_text, chat_format, may_reason, budget, begun, prefilled=prefilled, opens_turn=opens_turn)
    return decide(conversation, prompt, model).constraint


def accepts(constraint: Constraint | None, text: str) -> bool:
    """Return whether the constraint allows exactly `text`. Advances the constraint."""
    assert constraint is not None
    return takes(constraint, text.encode()) and (constraint.finished or constraint.allows(EOS))


def parse_tools(tools: object, choice: object = None) -> Tools:
    """Parse ``tools`` and ``tool_choice`` of a chat."""
    return ChatTools(tools).finish(choice, None, [])


@dataclass
class ScriptedParser:
    """A parser that maps each text to the pieces in `script`; any other text is content."""

    script: Mapping[str, Sequence[Piece]] = field(default_factory=dict)

    def feed(self, text: str) -> list[Piece]:
        return list(self.script.get(text, [ContentText(text)]))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return []


class SequenceParser:
    """A parser that returns the n-th list of `pieces` for the n-th text, and the next one at the end."""

    def __init__(self, *pieces: Sequence[Piece]) -> None:
        self._pieces = iter(pieces)

    def feed(self, _text: str) -> list[Piece]:
        return list(next(self._pieces))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return list(next(self._pieces, ()))
