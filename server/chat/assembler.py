"""Builds a message from the engine's events, for all API dialects.

An `Assembler` parses one choice. It converts each text from the engine to `Delta`s, and each delta extends one item.
The items in order are the message: text, reasoning and tool calls. The writers of dialects only convert deltas and
items.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from server.chat.conversation import Call, Message
from server.engine.request import Finished, FinishReason, Text, TokenLogprob
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from server.formats.parsing.reasoning import OutputParser

NewParser = Callable[[], OutputParser]


class Kind(Enum):
    """The type of an item."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True, eq=False)
class Item:
    """A part of the message. ``texts`` of a call are its arguments; ``index`` is its number among the calls."""

    kind: Kind
    index: int = 0
    id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text so far."""
        return "".join(self.texts)


@dataclass(slots=True)
class Delta:
    """More text of `item`, with the log probabilities of its tokens. The first delta of a call has no text.

    Not frozen, because one is created for every token.
    """

    item: Item
    text: str
    begins: bool = False
    logprobs: Sequence[TokenLogprob] = ()


class Assembler:
    """Parses the text of one choice into items.

    ``n_reasoning_tokens``: number of reasoning tokens, including the opening tag. A token counts for the item in
    which its text appears. If the parser buffers text, that is later than when the token was sampled. ``end``: set
    when the choice has finished.
    """

    def __init__(self, parser: OutputParser) -> None:
        self.items: list[Item] = []
        self.n_reasoning_tokens = 0
        self.end: Finished | None = None
        self._parser = parser
        self._calls: dict[int, Item] = {}
        self._n_tokens = 0
        self._logprobs: list[TokenLogprob] = []

    @property
    def finished(self) -> Finished:
        """Return the finish event. Only valid after the choice has finished."""
        assert self.end is not None, "the choice has not finished"
        return self.end

    def begin(self, text: str) -> list[Delta]:
        """Add content from the end of the prompt, for replies that repeat it."""
        return self._take([ContentText(text)] if text else [])

    def feed(self, event: Text) -> list[Delta]:
        """Parse the engine's next text and return the deltas that later text can't change."""
        self._n_tokens += len(event.tokens)
        if event.logprobs:
            # Without the end token, which llama-server's lists have and OpenAI's do not.
            self._logprobs += (token for token in event.logprobs if not token.ends)
        return self._take(self._parser.feed(event.text)) if event.text else []

    def finish(self, end: Finished) -> list[Delta]:
        """Parse the end of the choice and return deltas for the buffered text."""
        self.end = end
        return self._take(self._parser.finish(cut=end.reason is not FinishReason.EOS))

    def rest(self) -> list[TokenLogprob]:
        """Return and remove the log probabilities of tokens that have not produced text."""
        pending, self._logprobs = self._logprobs, []
        return pending

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Return the log probabilities of all items, and those that `rest` would return."""
        return [*(each for item in self.items for each in item.logprobs), *self._logprobs]

    def text(self, kind: Kind) -> str:
        """Return the text of all items of a kind."""
        return "".join(item.text for item in self.items if item.kind is kind)

    @property
    def calls(self) -> list[Item]:
        """Return the calls in order."""
        return list(self._calls.values())

    def message(self) -> Message:
        """Return the output as a message of the conversation."""
        calls = tuple(Call(item.name, item.text, item.id) for item in self.calls)
        return Message("assistant", self.text(Kind.TEXT), self.text(Kind.REASONING), calls)

    def _take(self, pieces: list[Piece]) -> list[Delta]:
        deltas = []
        for piece in pieces:
            match piece:
                case ToolCallArguments(index, text):
                    item, begins = self._calls[index], False
                case ToolCallBegin(index, id, name):
                    item, begins, text = Item(Kind.CALL, index, id, name), True, ""
                    self._calls[index] = item
                case ContentText(text) | Reasoning(text):
                    kind = Kind.TEXT if type(piece) is ContentText else Kind.REASONING
                    if kind is Kind.REASONING:
                        self.n_reasoning_tokens += self._n_tokens
                    begins = not self.items or self.items[-1].kind is not kind
                    item = Item(kind) if begins else self.items[-1]
            self._n_tokens = 0
            if begins:
                self.items.append(item)
            if text:
                item.texts.append(text)
            logprobs = self.rest() if self._logprobs else ()
            item.logprobs += logprobs
            deltas.append(Delta(item, text, begins, logprobs))
        return deltas
