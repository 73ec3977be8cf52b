"""Parses ``system`` and ``messages`` of Anthropic's Messages API to a conversation.

It follows llama-server's conversion (tools/server/server-chat.cpp, server_chat_convert_anthropic_to_oai) with four
differences: tool results precede a message's text, next to their calls; they have the name of their tool; omitted
content is reported; and calls that Anthropic's servers executed are calls, too.
"""

import re
from dataclasses import dataclass, field

from server.chat.conversation import Call, Message, Part
from server.dialects.fields import MAX_MESSAGES, as_array, as_object, json_text, string_of, wrong_type
from server.dialects.mcp import function_name
from server.dialects.messages.blocks import (
    Block,
    read_parts,
    read_result,
    read_server_result,
    skip,
    string_or_none,
    typed,
)
from server.dialects.messages.mcp import LISTING
from server.dialects.messages.tools import DeferredDefinitions
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher, TamperedReasoning
from server.dialects.tools import model_name
from server.dialects.warnings import FOREIGN_REASONING
from server.errors import InvalidRequest

_ROLES = ("user", "assistant", "system")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}
"""Blocks of reasoning, and the field of each that has the encrypted text."""
_STAMP = re.compile(r"x-anthropic-billing-header:(?:\s*\w+=[^;\s]*;)+")
_STAMPED = re.compile(r"(?<=\scch=).{5}(?=;)|(?<=\scc_version=)(\d+\.\d+\.\d+)\.\w+(?=;)")


def read_conversation(
    system: object,
    messages: object,
    warnings: list[str],
    later: DeferredDefinitions,
    cipher: ReasoningCipher = NO_CIPHER,
) -> list[Message]:
    """Return the messages, the system prompt first.

    Adds omitted content to `warnings` and introduced tools to `later`. `cipher` decrypts reasoning. A message
    without blocks and an empty system prompt are omitted. There may be no message at all, as in llama-server: then
    the model starts. Raises `InvalidRequest` with a path such as ``messages.0.content.1.text``.
    """
    found = _system(system, warnings)
    if messages is None:
        raise InvalidRequest("messages: is required", "messages")
    messages = as_array(messages, "messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: must have at most {MAX_MESSAGES} messages", "messages")
    names = dict[str, str]()
    for index, message in enumerate(messages):
        found += _message(message, f"messages.{index}", names, warnings, later, cipher)
    return found


def _system(given: object, warnings: list[str]) -> list[Message]:
    if isinstance(given, list):
        text = "".join(_system_block(block, f"system.{index}", warnings) for index, block in enumerate(given))
    elif isinstance(given, str) or given is None:
        text = steady_system(given or "")
    else:
        raise wrong_type("system", "a string or an array of text blocks", given)
    return [Message("system", text)] if text else []


def _system_block(given: object, path: str, warnings: list[str]) -> str:
    block, kind = typed(given, path)
    if kind != "text":
        skip(kind, warnings)
        return ""
    return steady_system(string_of(block, "text", path))


def steady_system(text: str) -> str:
    """Return `text` with Claude Code's leading stamp replaced by a constant, so that requests share a prefix.

    In ``x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=cli; cch=a5145;``, the end of
    ``cc_version`` depends on a session's first words and ``cch`` on the whole request. No cached prefix would extend
    past them (llama-server handles ``cch``: server-chat.cpp, normalize_anthropic_billing_header).
    """
    found = _STAMP.match(text)
    if found is None:
        return text
    return _STAMPED.sub(lambda part: f"{part[1]}.fff" if part[1] else "fffff", found[0]) + text[found.end() :]


def _message(
    given: object,
    path: str,
    names: dict[str, str],
    warnings: list[str],
    later: DeferredDefinitions,
    cipher: ReasoningCipher,
) -> list[Message]:
    given = as_object(given, path)
    role = given.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f'{path}.role: must be "user", "assistant" or "system"', f"{path}.role")
    content = given.get("content")
    if content is None:
        if role == "assistant":  # llama-server leaves it out, too
            return []
        raise InvalidRequest(f"{path}.content: is required", f"{path}.content")
    if isinstance(content, str):
        return [Message(role, content)]
    if not isinstance(content, list):
        raise wrong_type(f"{path}.content", "a string or an array of blocks", content)
    turn = _Turn(role, names, warnings, later, cipher)
    for index, block in enumerate(content):
        where = f"{path}.content.{index}"
        turn.take(*typed(block, where), where)
    return turn.messages()


@dataclass(slots=True)
class _Turn:
    """The blocks of one message. ``names``: the tools of all calls so far, by the ids of the calls."""

    role: str
    names: dict[str, str]
    warnings: list[str]
    later: DeferredDefinitions
    cipher: ReasoningCipher
    parts: list[Part] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    done: list[Message] = field(default_factory=list)

    def take(self, block: Block, kind: str, path: str) -> None:
        if kind in _CALLS or kind in _OPAQUE:
            self._require(kind, path, "assistant")
            if kind in _CALLS:
                self._call(block, path)
            else:
                self._take_reasoning(block, kind, path)
        elif kind == LISTING:  # `pinned_lists` reads it
            self._require(kind, path, "assistant")
        elif kind == "tool_result" or kind.endswith("_tool_result"):
            self._require(kind, path, "user", "assistant")
            self._result(block, kind, path)
        else:
            shown = read_parts(block, kind, path, self.warnings, self.later)
            if shown is None:
                skip(kind, self.warnings)
            else:
                self.parts += shown

    def messages(self) -> list[Message]:
        """Return messages in template order: the tool results, then the message itself."""
        self._end()
        return self.done

    def _require(self, kind: str, path: str, *roles: str) -> None:
        if self.role not in roles:
            said = f"a block of type {kind!r} can't be in a message of the role {self.role!r}"
            raise InvalidRequest(f"{path}.type: {said}", f"{path}.type")

    def _end(self) -> None:
        """Create a message from the content so far."""
        if self.parts or self.calls or self.reasoning:
            content = tuple(self.parts) or ""
            self.done.append(Message(self.role, content, "".join(self.reasoning), tuple(self.calls)))
        self.parts, self.reasoning, self.calls = [], [], []

    def _take_reasoning(self, block: Block, kind: str, path: str) -> None:
        """Take the encrypted text, or the visible one if this server cannot decrypt it. Raises `InvalidRequest`."""
        field = _OPAQUE[kind]
        visible = string_or_none(block, "thinking", path) if kind == "thinking" else ""
        opaque = string_of(block, field, path) if block.get(field) is not None else ""
        try:
            decrypted = self.cipher.decrypt(opaque)
        except TamperedReasoning:
            raise InvalidRequest(f"{path}: Invalid `{field}` in `{kind}` block", f"{path}.{field}") from None
        if opaque and decrypted is None:
            self.warnings.append(FOREIGN_REASONING.format(f"{field} of {kind} blocks"))
        if text := visible if decrypted is None else decrypted:
            self.reasoning.append(text)

    def _call(self, block: Block, path: str) -> None:
        call_id = string_or_none(block, "id", path)
        name = model_name(string_of(block, "name", path), block.get("toolset_name"))
        if block["type"] == "mcp_tool_use" and isinstance(block.get("server_name"), str):
            name = function_name(block["server_name"], name)
        given = block.get("input")
        if given is None:
            given = {}
        arguments = given if isinstance(given, str) else json_text(given)
        self.names[call_id] = name
        self.calls.append(Call(name, arguments, call_id))

    def _result(self, block: Block, kind: str, path: str) -> None:
        call_id = string_or_none(block, "tool_use_id", path)
        if not isinstance(block.get("is_error"), bool | None):
            raise wrong_type(f"{path}.is_error", "a boolean", block["is_error"])
        if self.role == "assistant":  # a call that was answered within the turn
            self._end()
        given, where = block.get("content"), f"{path}.content"
        own = kind == "tool_result"
        content = read_result(given, where, self.warnings, self.later) if own else read_server_result(given, where)
        self.done.append(Message("tool", content, call_id=call_id, name=self.names.get(call_id, "")))
