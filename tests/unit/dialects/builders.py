"""Short ways to a model, events and parsed chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import orjson

from server.chat.conversation import Conversation, ReasoningSettings, Tools
from server.chat.prepare import decide
from server.chat.prompt import Prompt
from server.dialects.chat.parse import ChatTools
from server.dialects.common import Header
from server.dialects.constraints import ConstraintFields, read_shape
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
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.reasoning_end import ReasoningBudget
from tests.support.fakes import CHATML, FakeVocab
from tests.unit.structured.builders import BYTES

HEADER = Header("demo", "chatcmpl-1", 1700000000)


@dataclass
class FakeConstraint:
    """Remembers what it was made from."""

    kind: str
    source: Any = None

    def fork(self) -> "FakeConstraint":
        return FakeConstraint(self.kind, self.source)


class FakeCompiler:
    """Makes `FakeConstraint`s."""

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
) -> Any:
    """What a wire format reads of a `LoadedModel`, without an engine."""
    from server.templates.template import ChatTemplate

    vocab = FakeVocab(fim)
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
        grammar=FakeCompiler(),
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


def logprob(piece: bytes, value: float = -0.5, *, token: int = 1) -> TokenLogprob:
    return TokenLogprob(token, piece, value, ())


def chunks(raw: Sequence[bytes]) -> list[dict[str, Any]]:
    """The parsed events; checks that each is one whole event. [DONE] is left out."""
    found = []
    for event in raw:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2
        if event != b"data: [DONE]\n\n":
            found.append(orjson.loads(event[6:]))
    return found


def answer_of(
    model: Any,
    opened: str = "",
    *,
    tools: Tools | None = None,
    thinks: bool = True,
    opens: bool = True,
    prefilled: str = "",
    reasoning_format: str = "auto",
    **fields: object,
) -> Constraint | None:
    """What holds behind a prompt that ends with `opened`, for a body with these fields."""
    asked = parse(ConstraintFields, fields)
    thinking = ReasoningSettings(format=reasoning_format)
    conversation = Conversation((), tools or Tools(), thinking, read_shape(asked), asked.lazy)
    chat_format = model.template.chat_format(tools=bool(conversation.tools.tools))
    thoughts = open_reasoning(opened, chat_format.reasoning_tags)
    prompt = Prompt((), opened, chat_format, thinks, ReasoningBudget(), thoughts, prefilled=prefilled, opens=opens)
    return decide(conversation, prompt, model).constraint


def tools_of(tools: object, choice: object = None, parallel: bool | None = None) -> Tools:
    """A chat's tools, without those that are skipped."""
    return ChatTools(tools).finish(choice, parallel, [])


class Scripted:
    """A parser that maps each text to pieces. What it doesn't know is content."""

    SCRIPT: ClassVar[Mapping[str, list[Piece]]] = {}

    def feed(self, text: str) -> list[Piece]:
        return self.SCRIPT.get(text, [ContentText(text)])

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return []


class Turns:
    """A parser that gives the n-th of these for the n-th text, and the one that is left at the end."""

    def __init__(self, *turns: Sequence[Piece]) -> None:
        self._turns = iter(turns)

    def feed(self, _text: str) -> list[Piece]:
        return list(next(self._turns))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return list(next(self._turns, ()))
