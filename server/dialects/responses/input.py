"""``input`` of OpenAI's Responses: a string or items, converted to the messages of a conversation.

The rules are llama-server's (tools/server/server-chat.cpp, server_chat_convert_responses_to_chatcmpl): the reasoning,
texts and calls of one turn become one message. In addition, no item type is an error, because clients send back items
of any server: all types of calls become calls, their outputs tool results, and an item without usable text is dropped
with a warning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from server.chat.conversation import Call, Message, Part, TextPart, text_content
from server.dialects.common import Json, random_id
from server.dialects.content import MEDIA, read_content
from server.dialects.custom_tools import input_arguments
from server.dialects.fields import MAX_MESSAGES, json_text, objects_in, string_of, text_in, wrong_type
from server.dialects.reasoning_cipher import COMPACTION, NO_CIPHER, REASONING, ReasoningCipher, TamperedReasoning
from server.dialects.responses.compaction import compacted_text
from server.dialects.responses.tools import ApprovedCall, ResponseTools, reader_name, without_secrets
from server.dialects.responses.write import ITEM_TYPES
from server.dialects.tool_types import called
from server.dialects.tools import model_name
from server.dialects.warnings import FOREIGN_REASONING, Omitted
from server.errors import InvalidRequest, invalid

_PART_DEFAULTS: Mapping[object, Json] = {
    "output_text": {"annotations": []},
    "input_image": {"detail": "auto"},
}


@dataclass(frozen=True, slots=True)
class History:
    """The stored items that a body names."""

    items: Sequence[Json] = ()  # precede the input
    named_by: str = "previous_response_id"  # the field of the body that names them, for errors
    referenced: Mapping[str, Json] = field(default_factory=dict)  # items that the input references, by id


NO_HISTORY = History()


def references(items: object) -> set[str]:
    """Return the ids of the stored items that an input references."""
    if not isinstance(items, list):
        return set()
    found = (item.get("id") for item in items if isinstance(item, dict) and _is_reference(item))
    return {item_id for item_id in found if isinstance(item_id, str)}


def _is_reference(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a reference: ``{"type": "item_reference", "id": ...}``, where ``type`` is optional."""
    return item.get("type") == "item_reference" or set(item) == {"id"}


def item_to_store(item: Json) -> Json:
    """Return an input item as it is stored and listed: with fields that the client omitted, and without secrets."""
    kind = item.get("type") or "message"
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        item_id = (ITEM_TYPES[kind].prefix if kind in ITEM_TYPES else "item_") + random_id()
    stored = {**item, "id": item_id, "type": kind, "status": item.get("status") or "completed"}
    if kind in ("additional_tools", "tool_search_output") and isinstance(item.get("tools"), list):
        stored["tools"] = [without_secrets(each) if isinstance(each, dict) else each for each in item["tools"]]
    if kind != "message":
        return stored
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if item.get("role") == "assistant" else "input_text", "text": content}]
    if isinstance(content, list):
        stored["content"] = [{**_PART_DEFAULTS.get(part.get("type"), {}), **part} for part in content]
    return stored


_ROLES = ("user", "assistant", "system", "developer")
_INTRODUCTION = "These functions can be called from now on:\n"
_NOTHING_FOUND = "No tool was found."
_DENIED = "The user denied this call"


def read_input(
    value: object,
    history: History = NO_HISTORY,
    at: str = "input",
    tools: ResponseTools | None = None,
    cipher: ReasoningCipher = NO_CIPHER,
) -> "InputReader":
    """Parse `history` and an input. Return the reader, which has the messages.

    `at`: the field of the body with the input. `history` also resolves references to stored items. Tools in items are
    added to `tools`. `cipher` decrypts reasoning. Raises `InvalidRequest` with a path such as
    ``input.0.content.1.text``.
    """
    if value is None and not history.items:
        raise invalid(at, f"'{at}' is required")
    given = [{"role": "user", "content": value}] if isinstance(value, str) else [] if value is None else value
    if not isinstance(given, list):
        raise invalid(at, f"'{at}' must be a string or array of objects")
    if len(history.items) + len(given) > MAX_MESSAGES:
        raise invalid(at, f"a conversation must have at most {MAX_MESSAGES} items")
    reader, referenced = InputReader(tools or ResponseTools(), cipher), {**history.referenced}
    for item in history.items:
        reader.read(item, history.named_by)
    for item, path in objects_in(given, at):
        reader.items.append(item)
        if _is_reference(item):
            item_id = string_of(item, "id", path)
            if item_id not in referenced:
                reason = "has two references" if item_id in history.referenced else "not found"
                raise invalid(f"{path}.id", f"Item with id '{item_id[:80]}' {reason}.")
            reader.items[-1] = referenced.pop(item_id)  # only once, because an item may be as long as a body
        reader.read(reader.items[-1], path)
    reader.finish()
    return reader


@dataclass(slots=True)
class _Turn:
    """A turn of the assistant, which consists of several items."""

    parts: list[Part] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class InputReader:
    """Converts items, one after another, to ``messages``."""

    tools: ResponseTools
    cipher: ReasoningCipher
    items: list[Json] = field(default_factory=list)  # of the input, with references resolved
    messages: list[Message] = field(default_factory=list)
    turn: _Turn | None = None  # the current turn of the assistant
    has_started: bool = False  # whether there are messages besides instructions
    call_ids: dict[str, str] = field(default_factory=dict)  # by item id
    omitted: Omitted = field(default_factory=Omitted)
    has_foreign_reasoning: bool = False
    approvals: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # requests for approval, by id
    approved: dict[str, ApprovedCall] = field(default_factory=dict)  # approved calls without a result, by id

    @property
    def warnings(self) -> list[str]:
        """Return warnings about dropped items."""
        foreign = [FOREIGN_REASONING.format("encrypted_content")] * self.has_foreign_reasoning
        return [*self.omitted.warnings(), *foreign]

    def read(self, item: Mapping[str, Any], path: str) -> None:
        """Convert one item. Raises `InvalidRequest`."""
        kind = item.get("type")
        match kind:
            case None | "message":
                self._message(item, path)
            case "reasoning":
                visible = _joined_texts(item, "content", path) or _joined_texts(item, "summary", path)
                text = self._decrypted(item, path)
                if text := visible if text is None else text:
                    self._assistant().reasoning.append(text)
            case "compaction" | "compaction_summary":  # the latter is codex-rs' older name
                text = self._decrypted(item, path, COMPACTION)
                if text is None:
                    self.omitted.add("input items", kind)
                else:
                    self._add("user", [TextPart(compacted_text(text))])
            case "function_call":
                name, is_null = _function_name(item, path), item.get("arguments", item) is None
                arguments = "{}" if is_null else string_of(item, "arguments", path)
                self._call(name, arguments, string_of(item, "call_id", path))
            case "custom_tool_call":
                arguments = input_arguments(string_of(item, "input", path))
                self._call(_function_name(item, path), arguments, string_of(item, "call_id", path))
            case "function_call_output" | "custom_tool_call_output":
                call_id = string_of(item, "call_id", path)
                self._add("tool", self._output(item.get("output"), f"{path}.output"), call_id)
            case "additional_tools":
                self._additional_tools(item, path)
            case "mcp_call" if isinstance(item.get("name"), str):
                # An approved call has the id of the approval request.
                call_id = text_in(item, "approval_request_id") or str(item.get("id") or "")
                self.approved.pop(call_id, None)
                result = TextPart(_as_json(item.get("output") or item.get("error") or ""))
                self._call(reader_name(item), _as_json(item.get("arguments") or {}), call_id, [result])
            case "mcp_list_tools":  # `read_mcp` reads it
                pass
            case "mcp_approval_request" if isinstance(item.get("name"), str) and isinstance(item.get("id"), str):
                self.approvals[item["id"]] = item
            case "mcp_approval_response":
                self._approval(item, path)
            case str():
                self._other(item, kind, path)
            case _:
                raise wrong_type(f"{path}.type", "a text such as message", kind)

    def finish(self) -> None:
        """Append the current turn of the assistant, if there is one."""
        if self.turn is not None:
            turn, self.turn = self.turn, None
            reasoning = "\n".join(turn.reasoning)
            self.messages.append(Message("assistant", text_content(turn.parts), reasoning, tuple(turn.calls)))

    def _add(self, role: str, parts: Sequence[Part], call_id: str = "") -> None:
        """End the assistant's turn and append a message."""
        self.finish()
        self.messages.append(Message(role, text_content(parts), call_id=call_id))
        self.has_started |= role not in ("system", "developer")

    def _assistant(self) -> _Turn:
        """Return the current turn of the assistant; start one if there is none."""
        if self.turn is None:
            self.turn, self.has_started = _Turn(), True
        return self.turn

    def _call(self, name: str, arguments: str, call_id: str, result: Sequence[Part] | None = None) -> None:
        self._assistant().calls.append(Call(name, arguments, call_id))
        if result is not None:
            self._add("tool", result, call_id)

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise invalid(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
        content = item.get("content")
        content = "" if content is None and role == "assistant" else content
        parts = read_content(content, f"{path}.content", self.omitted)
        if role == "assistant":
            self._assistant().parts += parts
        else:
            self._add(role, parts)

    def _additional_tools(self, item: Mapping[str, Any], path: str) -> None:
        """Add tools of the client: to the request's tools before the first turn, afterwards as a message."""
        tools, path = item.get("tools"), f"{path}.tools"
        if not self.has_started:
            self.tools.offer(tools, path)
        elif definitions := self.tools.introduce(tools, path):
            self._add("developer", [TextPart(_INTRODUCTION + definitions)])

    def _approval(self, item: Mapping[str, Any], path: str) -> None:
        """Convert the client's reply to an approval request."""
        request_id, approves = string_of(item, "approval_request_id", path), item.get("approve")
        request = self.approvals.get(request_id)
        if request is None:
            raise invalid(f"{path}.approval_request_id", f"no approval request has the id '{request_id[:80]}'")
        if not isinstance(approves, bool):
            raise wrong_type(f"{path}.approve", "a boolean", approves)
        arguments, reason = _as_json(request.get("arguments") or {}), text_in(item, "reason")
        if approves:
            label = text_in(request, "server_label")
            self.approved[request_id] = ApprovedCall(request_id, label, request["name"], arguments, path)
        else:
            self.approved.pop(request_id, None)  # the last reply counts
            denied = f"{_DENIED}: {reason}" if reason else _DENIED
            self._call(reader_name(request), arguments, request_id, [TextPart(denied)])

    def _other(self, item: Mapping[str, Any], kind: str, path: str) -> None:
        """Convert an item of a tool that is no function, or of an unknown type."""
        call_id = text_in(item, "call_id") or text_in(item, "id")
        call_id = self.call_ids.get(call_id, call_id)  # outputs of local_shell may have the item's id
        call = called(kind, item) if call_id else None
        if call is not None:
            self._call(*call, call_id)
            if isinstance(item.get("id"), str):
                self.call_ids[item["id"]] = call_id
        elif kind == "code_interpreter_call" and isinstance(item.get("code"), str):
            result = self._output(item.get("outputs") or "", f"{path}.outputs")
            self._call("code_interpreter", orjson.dumps({"code": item["code"]}).decode(), call_id, result)
        elif kind == "tool_search_output" and call_id:
            definitions = self.tools.introduce(item.get("tools"), f"{path}.tools")
            self._add("tool", [TextPart(definitions or _NOTHING_FOUND)], call_id)
        elif kind == "tool_search_output" and item.get("tools"):  # of a server's search, which may have no call
            self._additional_tools(item, path)
        elif kind == "apply_patch_call_output" and call_id:
            parts, status = self._output(item.get("output") or "", f"{path}.output"), text_in(item, "status")
            if status == "failed" or (status and not parts):
                parts = [TextPart(status), *parts]
            self._add("tool", parts, call_id)
        elif kind.endswith("_output") and call_id and item.get("output") is not None:
            self._add("tool", self._output(item["output"], f"{path}.output"), call_id)
        elif item.get("role") in _ROLES and item.get("content") is not None:
            self._message(item, path)
        elif kind == "agent_message" and item.get("content") is not None:  # codex-rs: a message from another agent
            self._add("user", read_content(item["content"], f"{path}.content", self.omitted))
        else:
            self.omitted.add("input items", kind)

    def _output(self, given: object, path: str) -> list[Part]:
        """Return a tool output: a string, content parts, or the output of a shell."""
        if isinstance(given, dict):
            kind = given.get("type")
            is_media = isinstance(kind, str) and kind in MEDIA
            return read_content([given], path, self.omitted) if is_media else [TextPart(_as_json(given))]
        if isinstance(given, list) and any(isinstance(part, dict) and "type" not in part for part in given):
            return [TextPart(_as_json(given))]
        return read_content(given, path, self.omitted)

    def _decrypted(self, item: Mapping[str, Any], path: str, purpose: bytes = REASONING) -> str | None:
        """Return the decrypted content of an item, None if it has none or this server can't decrypt it."""
        if not item.get("encrypted_content"):
            return None
        opaque, at = string_of(item, "encrypted_content", path), f"{path}.encrypted_content"
        try:
            text = self.cipher.decrypt(opaque, purpose)
        except TamperedReasoning:
            message = f"{at}: The encrypted content {opaque[:16]}... could not be verified."
            raise InvalidRequest(message, at, "invalid_encrypted_content") from None
        self.has_foreign_reasoning |= text is None and item["type"] == "reasoning"
        return text


def _function_name(item: Mapping[str, Any], path: str) -> str:
    return model_name(string_of(item, "name", path), item.get("namespace"))


def _as_json(value: Any) -> str:
    """Return a string unchanged, anything else as JSON, objects without null members."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if part is not None}
    return json_text(value)


def _joined_texts(item: Mapping[str, Any], key: str, path: str) -> str:
    parts = [] if item.get(key) is None else item[key]
    return "\n".join(string_of(part, "text", where) for part, where in objects_in(parts, f"{path}.{key}"))
