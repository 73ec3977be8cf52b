"""Writes a message of Anthropic's API, whole or as a stream of typed events::

    event: message_start          the message without content, with the token counts of the prompt
    event: content_block_start    index, and an empty block of type text, thinking or tool_use
    event: content_block_delta    index, and text_delta, thinking_delta, input_json_delta or signature_delta
    event: content_block_stop     index
    event: message_delta          stop_reason, stop_sequence, the counts of all tokens
    event: message_stop

Keys and events match llama-server's (server-task.cpp, to_json_anthropic and its _stream). These differences follow
Anthropic's API: blocks are in the order of generation, one ends before the next starts, and a block starts with all its
keys (``input``, ``signature``); the stop reason for a stop string is ``stop_sequence``, not ``end_turn``; a continued
message is not repeated.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from server.chat.assembler import Delta, Item, Kind, NewParser
from server.chat.conversation import Call
from server.dialects.common import Header, Json, page_of, random_id, rfc3339, typed_event
from server.dialects.mcp import RoundWriter
from server.dialects.tools import ClientName
from server.dialects.usage import Usage
from server.engine.request import Event, Finished, FinishReason, Started, Text
from server.formats.arguments import object_text
from server.mcp.servers import McpResult

if TYPE_CHECKING:
    from server.dialects.messages.parse import MessagesRequest

PING = typed_event({"type": "ping"})
_KEYS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}


class MessageWriter(RoundWriter["MessagesRequest"]):
    names_results = True

    def __init__(self, request: "MessagesRequest", header: Header, parser: NewParser) -> None:
        super().__init__(request, header.id, parser)
        self._header, self._show_reasoning = header, request.show_reasoning
        self._blocks: list[Json] = []  # the finished blocks of all rounds
        self._has_started = False
        self._open: Item | None = None  # the item of the current block

    def _call_block(self, item: Item, arguments: object) -> Json:
        """Return the block of a call."""
        tool = self.server_tools.get(item.name)
        if tool is None:
            client = self.request.names.get(item.name) or ClientName(item.name)
            block = {"type": "tool_use", "id": item.id, "name": client.name, "input": arguments}
            toolset = {"toolset_name": client.namespace, "caller": {"type": "direct"}}
            return block | toolset if client.namespace else block
        server = {"name": tool.tool.name, "server_name": tool.server.label}
        return {"type": "mcp_tool_use", "id": item.id, **server, "input": arguments}

    def _stop(self) -> Json:
        """Return ``stop_reason`` and ``stop_sequence``."""
        end = self.assembler.finished
        if end.reason is FinishReason.LIMIT:
            reason = "model_context_window_exceeded" if end.context_full else "max_tokens"
        elif end.reason is FinishReason.STOP:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self.waits_for_client else "end_turn"
        return {"stop_reason": reason, "stop_sequence": end.stopping_word if reason == "stop_sequence" else None}

    def body(self) -> Json:
        return _message(self._header, self._blocks, self._stop(), self.usage)

    def _block(self, item: Item) -> Json:
        if item.kind is Kind.TEXT:
            return {"type": "text", "text": item.text}
        if item.kind is Kind.REASONING:
            text = item.text if self._show_reasoning else ""
            return {"type": "thinking", "thinking": text, "signature": self.request.cipher.encrypt(item.text)}
        return self._call_block(item, orjson.Fragment(object_text(item.text, whole=True)))

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        match event:
            case Started():
                return self._begin(event)
            case Text():
                return self._written(self.assembler.feed(event))
            case Finished():
                return self._begin(event) + self._written(self.assembler.finish(event)) + self._close()
        return []

    def finish(self) -> list[bytes]:
        ending: Json = {"type": "message_delta", "delta": self._stop(), "usage": self.usage.anthropic()}
        return [typed_event(ending), typed_event({"type": "message_stop"})]

    def completed(self, call: Call, result: McpResult) -> list[bytes]:
        content = [{"type": "text", "text": result.shown}]
        return self._whole_block(
            {"type": "mcp_tool_result", "tool_use_id": call.id, "is_error": result.failed, "content": content}
        )

    def _whole_block(self, block: Json) -> list[bytes]:
        """Add a complete block; return its events."""
        return [self._event("content_block_start", content_block=block), self._end(block)]

    def _begin(self, event: Started | Finished) -> list[bytes]:
        if self._has_started:
            return []
        self._has_started = True
        empty = {"stop_reason": None, "stop_sequence": None}
        message = _message(self._header, [], empty, Usage(event.n_prompt, event.n_cached))
        listed = [event for block in self.request.listings for event in self._whole_block(block)]
        return [typed_event({"type": "message_start", "message": message}), *listed]

    def _written(self, deltas: list[Delta]) -> list[bytes]:
        events: list[bytes] = []
        for delta in deltas:
            if delta.begins:
                events += self._next(delta.item)
            is_visible = self._show_reasoning or delta.item.kind is not Kind.REASONING
            if delta.text and is_visible and self.streams:
                events.append(self._delta(*_KEYS[delta.item.kind], delta.text))
        return events

    def _next(self, item: Item) -> list[bytes]:
        """Return the end of the previous block and the start of the item's."""
        ended = self._close()
        self._open = item
        if self._is_server_call(item):
            item.id = f"mcptoolu_{random_id()}"
        empty: dict[Kind, Json] = {
            Kind.TEXT: {"type": "text", "text": ""},
            Kind.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
            Kind.CALL: self._call_block(item, {}),
        }
        return [*ended, self._event("content_block_start", content_block=empty[item.kind])]

    def _close(self) -> list[bytes]:
        item, self._open = self._open, None
        if item is None:
            return []
        rest: list[bytes] = []
        block = self._block(item)
        if item.kind is Kind.REASONING:  # clients expect a signature before the end of the block
            rest = [self._delta("signature_delta", "signature", block["signature"])]
        elif item.kind is Kind.CALL and not item.text:
            rest = [self._delta(*_KEYS[item.kind], "{}")]
        return [*rest, self._end(block)]

    def _end(self, block: Json) -> bytes:
        """Add a finished block; return its last event."""
        event = self._event("content_block_stop")
        self._blocks.append(block)
        return event

    def _delta(self, kind: str, key: str, text: str) -> bytes:
        return self._event("content_block_delta", delta={"type": kind, key: text})

    def _event(self, kind: str, **members: Json) -> bytes:
        """Return an event of the current block."""
        return typed_event({"type": kind, "index": len(self._blocks), **members})


def _message(header: Header, content: list[Json], end: Json, usage: Usage) -> Json:
    """Return a message. ``end``: ``stop_reason`` and ``stop_sequence``, both null until the message is complete."""
    return {
        "id": header.id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": header.model,
        **end,
        "usage": usage.anthropic(),
    }


def anthropic_models(models: Sequence[Json]) -> Json:
    return {"object": "list", **page_of([anthropic_model(model) for model in models], has_more=False)}


def anthropic_model(model: Json) -> Json:
    """Convert an entry of OpenAI's model list. Token limits are null until the model has been loaded."""
    n_ctx = model.get("meta", {}).get("n_ctx")
    return {
        "type": "model",
        **model,
        "display_name": model["id"],
        "created_at": rfc3339(model["created"]),
        "max_input_tokens": n_ctx,
        "max_tokens": n_ctx,
        "lifecycle": "active",
        **dict.fromkeys(("capabilities", "line", "deprecated_at", "retires_at")),
    }
