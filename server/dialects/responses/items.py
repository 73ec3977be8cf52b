"""The output items of a response while it is generated: reasoning, messages and calls in order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from server.chat.assembler import Assembler, Delta, Item, Kind
from server.chat.conversation import Call, Message
from server.dialects import common as wire
from server.dialects.common import Json, random_id
from server.dialects.custom_tools import CustomInput
from server.dialects.mcp import CallableTool
from server.dialects.responses.tools import ClientTools
from server.dialects.tool_types import ToolType
from server.dialects.tools import ClientName
from server.dialects.usage import Usage
from server.engine.request import Finished, FinishReason, Text

ItemType = str
"""``message``, ``reasoning``, ``function_call``, ``custom_tool_call``, or the call of a type of `tool_types`."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]
_PREFIXES: dict[ItemType, str] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
}
PartType = Literal["output_text", "reasoning_text", "summary_text"]
Encrypt = Callable[[str], str]
_TYPES: dict[Kind, ItemType] = {Kind.TEXT: "message", Kind.REASONING: "reasoning", Kind.CALL: "function_call"}


NO_SERVER_TOOLS: Mapping[str, CallableTool] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class OutputItem:
    """One output item.

    ``index``: its position in the output. ``client``: the client's name of the called tool. ``encrypt``: creates the
    ``encrypted_content`` of reasoning, None for none. ``summarizes``: the reasoning text is the item's summary.
    ``server_tool``: the tool that this server calls. ``outcome``: the members that the call's outcome adds to the
    item.
    """

    said: Item
    index: int
    client: ClientName
    after_sampling: bool = False
    encrypt: Encrypt | None = None
    summarizes: bool = False
    type: ItemType = "message"
    id: str = ""
    call_id: str = ""
    custom: CustomInput = field(default_factory=CustomInput)
    _encrypted: str | None = None
    server_tool: CallableTool | None = None
    outcome: Json | None = None

    def __post_init__(self) -> None:
        self.type = _TYPES[self.said.kind]
        if self.said.kind is Kind.CALL:
            self.type = "custom_tool_call" if self.client.custom else "function_call"
            if self.client.type is not None:
                self.type = self.client.type.call
            if self.server_tool is not None:
                self.type = "mcp_approval_request" if self.server_tool.needs_approval else "mcp_call"
            self.call_id = self.said.id or f"call_{random_id()}"
        prefix = _PREFIXES[self.type] if self.client.type is None else self.client.type.prefix
        self.id = prefix + random_id()

    @property
    def is_call(self) -> bool:
        """Whether it has no parts."""
        return self.said.kind is Kind.CALL

    @property
    def text(self) -> str:
        """All of its text: of a call, its arguments, of a custom tool's, its input."""
        return self.custom.text if self.type == "custom_tool_call" else self.said.text

    @property
    def part_type(self) -> PartType:
        """The type of its one part; a call has none."""
        if self.type == "message":
            return "output_text"
        return "summary_text" if self.summarizes else "reasoning_text"

    def part(self) -> Json:
        """Return its only part; a call has none."""
        part: Json = {"type": self.part_type, "text": self.text}
        return part | {"annotations": [], "logprobs": self.logprobs} if self.type == "message" else part

    @property
    def logprobs(self) -> list[Json]:
        """Those of all its tokens, where they are wanted."""
        return wire.probabilities(self.said.logprobs, after_sampling=self.after_sampling)

    def body(self, status: ItemStatus) -> Json:
        """The item as replies show it; one that has just begun has no content yet."""
        item: Json = {"id": self.id, "type": self.type, "status": status}
        if self.client.type is not None:
            return item | self._typed_call(self.client.type, status)
        if self.server_tool is not None:
            return self._server_call(self.server_tool, status)
        if self.is_call:
            space = {"namespace": self.client.namespace} if self.client.namespace else {}
            key = "input" if self.type == "custom_tool_call" else "arguments"
            return item | {key: self.text, "call_id": self.call_id, "name": self.client.name} | space
        parts = [] if status == "in_progress" else [self.part()]
        if self.type == "message":
            return item | {"content": parts, "role": "assistant"}
        if self.encrypt is not None and self._encrypted is None and status != "in_progress":
            self._encrypted = self.encrypt(self.text)
        shown = {"content": [], "summary": parts} if self.summarizes else {"content": parts, "summary": []}
        return item | shown | {"encrypted_content": self._encrypted}

    def _typed_call(self, row: ToolType, status: ItemStatus) -> Json:
        """The members of a call of a type of `tool_types`. One that is not complete must not be executed."""
        arguments = row.read(self.text) if status == "completed" else None
        unfinished = status != "in_progress" and arguments is None
        return {"status": row.unfinished if unfinished else status, "call_id": self.call_id, **row.body(arguments)}

    def _server_call(self, known: CallableTool, status: ItemStatus) -> Json:
        """Return a call that this server makes or lets the client approve. A call without an outcome was not made."""
        item: Json = {"id": self.id, "type": self.type, "name": known.tool.name, "arguments": self.text}
        item["server_label"] = known.server.label
        if self.type == "mcp_approval_request":
            return item
        status = "incomplete" if status == "completed" else status
        return (
            item | {"status": status, "approval_request_id": None, "output": None, "error": None} | (self.outcome or {})
        )


@dataclass(frozen=True, slots=True)
class Addition:
    """More text of an item, "" where one begins without; with the log probabilities of its tokens, if wanted."""

    item: OutputItem
    text: str
    logprobs: Sequence[Json] = ()


class OutputItems:
    """Converts deltas to items.

    Whitespace between items is dropped. ``server_tools``: the tools that this server calls, by the model's names.
    ``first_index``: the position of the first item in the output.
    """

    def __init__(
        self,
        said: Assembler,
        tools: ClientTools,
        *,
        after_sampling: bool = False,
        encrypt: Encrypt | None = None,
        summarizes: bool = False,
        server_tools: Mapping[str, CallableTool] = NO_SERVER_TOOLS,
        first_index: int = 0,
    ) -> None:
        self.items: list[OutputItem] = []
        self._said = said
        self._tools = tools
        self._after_sampling = after_sampling
        self._encrypt, self._summarizes = encrypt, summarizes
        self._server_tools, self._first_index = server_tools, first_index
        self._shown: dict[int, OutputItem] = {}  # by the identity of the message item
        self._blank: list[Delta] = []  # white space that a text has begun with

    def usage(self, end: Finished) -> Usage:
        """Return the token counts of the round that `end` ended."""
        return Usage.of([(0, end)], self._said.n_reasoning_tokens)

    def message(self) -> Message:
        """The output as a message of the conversation, its calls with the ids of their items."""
        calls = tuple(Call(item.said.name, item.said.text, item.call_id) for item in self.items if item.is_call)
        return replace(self._said.message(), calls=calls)

    def begin(self, text: str) -> list[Addition]:
        """Content that the prompt ends with, which the reply repeats."""
        return self._added(self._said.begin(text))

    def feed(self, event: Text) -> list[Addition]:
        """Take the next text."""
        return self._added(self._said.feed(event))

    def finish(self, end: Finished) -> list[Addition]:
        """Return the events of buffered text."""
        added = [*self._added(self._said.finish(end)), *self._ended()]
        if not self.items and self._said.items:  # nothing but white space
            only = self._said.items[0]
            added.append(Addition(self._open(only), only.text))
        return added

    def bodies(self, end: Finished) -> list[Json]:
        """Every item; where the limit cut the output off, the last one is incomplete."""
        last = last_status(end)
        return [item.body("completed" if item is not self.items[-1] else last) for item in self.items]

    def _added(self, deltas: Sequence[Delta]) -> list[Addition]:
        return [addition for delta in deltas for addition in self._additions(delta)]

    def _additions(self, delta: Delta) -> Iterator[Addition]:
        shown, text = self._shown.get(id(delta.item)), delta.text
        tokens = delta.logprobs
        if shown is None:
            if delta.item.kind is Kind.TEXT:
                self._blank = [*([] if delta.begins else self._blank), delta]
                text = "".join(each.text for each in self._blank)
                if not text.strip():
                    return
                tokens = [token for each in self._blank for token in each.logprobs]
            yield from self._ended()
            shown = self._open(delta.item)
        if shown.type == "custom_tool_call":
            text = shown.custom.feed(text)
        wanted = tokens if shown.type == "message" else ()
        yield Addition(shown, text, wire.probabilities(wanted, after_sampling=self._after_sampling))

    def _ended(self) -> Iterator[Addition]:
        """Return the remaining events of the last item, which has ended."""
        last = self.items[-1] if self.items else None
        if last is not None and last.type == "custom_tool_call" and (rest := last.custom.finish(last.said.text)):
            yield Addition(last, rest)

    def _open(self, said: Item) -> OutputItem:
        item = OutputItem(
            said,
            self._first_index + len(self.items),
            self._tools.named(said.name),
            self._after_sampling,
            self._encrypt,
            self._summarizes,
            server_tool=self._server_tools.get(said.name),
        )
        self._shown[id(said)] = item
        self.items.append(item)
        return item


def cut_off(end: Finished) -> bool:
    """Whether a limit ended the response."""
    return end.reason is FinishReason.LIMIT


def last_status(end: Finished) -> ItemStatus:
    """The status of the item that the response ended with."""
    return "incomplete" if cut_off(end) else "completed"
