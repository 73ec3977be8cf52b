"""``messages`` of OpenAI chat, checked and brought into the one form that templates get.

llama-server's rules (tools/server/server-common.cpp, oaicompat_chat_params_parse; common/chat.cpp,
common_chat_msgs_parse_oaicompat): unknown keys are dropped, null content is "", the arguments of a tool call
are JSON text.
"""

from dataclasses import dataclass
from typing import Any

from server.chat.conversation import Call, Content, Media, MediaKind, Message, Part, TextPart
from server.dialects.custom_tools import input_arguments
from server.dialects.fields import MAX_MESSAGES, as_array, as_object, as_string, json_text, text_of, wrong_type
from server.dialects.media import file_of, image_source, link
from server.dialects.warnings import left_out, shown
from server.errors import InvalidRequest

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THOUGHTS = ("thinking", "reasoning", "redacted_thinking")
_OTHER_THOUGHTS = ("thinking", "reasoning")
"""Names of ``reasoning_content`` in other servers' replies, which clients send back; Hugging Face takes them, too."""
_MEDIA: dict[str, MediaKind] = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "input_video": "video",
    "video_url": "video",
    "file": "document",
    "input_file": "document",
}


_PLACES = ("data", "url")
"""Where the object of a part has its file."""


def read_messages(value: object, warnings: list[str] | None = None) -> list[Message]:
    """Return the messages; adds parts that no model supports to `warnings`. Raises `InvalidRequest` with a path such as
    ``messages.0.content.1.text``.
    """
    if value is None:
        raise InvalidRequest("messages: 'messages' is required", "messages")
    if not isinstance(value, list):
        raise InvalidRequest("messages: Expected 'messages' to be an array", "messages")
    if not value:
        raise InvalidRequest("messages: must have at least one message", "messages")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: must have at most {MAX_MESSAGES} messages", "messages")
    reader = _Reader([] if warnings is None else warnings)
    return [reader.message(message, f"messages.{index}") for index, message in enumerate(value)]


@dataclass(frozen=True, slots=True)
class _Reader:
    warnings: list[str]

    def message(self, given: object, path: str) -> Message:
        given = as_object(given, path)
        role = given.get("role")
        if role is None:
            raise InvalidRequest(f"{path}.role: is required", f"{path}.role")
        if not isinstance(role, str) or not role:
            raise wrong_type(f"{path}.role", "a text such as user", role)
        if "content" not in given and role != "assistant":
            where = f"{path}.content"
            raise InvalidRequest(f"{where}: All non-assistant messages must contain 'content'", where)
        content = self._content(given.get("content"), f"{path}.content")
        thoughts = self._thoughts(given, path)
        name, call_id = (text_of(given, key, path) for key in ("name", "tool_call_id"))
        calls = self._calls(given.get("tool_calls"), f"{path}.tool_calls")
        return Message(role, content, thoughts, calls, call_id, name)

    def _thoughts(self, given: dict[str, Any], path: str) -> str:
        """Return ``reasoning_content``, a string or a list of strings; else the field that other servers use; else
        reasoning parts.
        """
        thoughts, content = given.get("reasoning_content"), given.get("content")
        if isinstance(thoughts, list):
            where = f"{path}.reasoning_content"
            return "".join(part.text for part in self._parts(thoughts, where) if isinstance(part, TextPart))
        if thoughts is not None:
            return text_of(given, "reasoning_content", path)
        found = next((text for text in map(given.get, _OTHER_THOUGHTS) if isinstance(text, str) and text), "")
        if found or not isinstance(content, list):
            return found
        return "".join(map(_thought, content))

    def _content(self, given: object, path: str) -> Content:
        if given is None:
            return ""
        if isinstance(given, str):
            return given
        if not isinstance(given, list):
            raise InvalidRequest(f"{path}: Expected 'content' to be a string or an array", path)
        return self._parts(given, path) or ""

    def _parts(self, given: list[object], path: str) -> tuple[Part, ...]:
        found = (self._part(part, f"{path}.{index}") for index, part in enumerate(given))
        return tuple(part for part in found if part is not None)

    def _part(self, given: object, path: str) -> Part | None:
        given = as_object(given, path)
        kind = given.get("type")
        if not isinstance(kind, str):
            raise InvalidRequest(f"{path}.type: unsupported content[].type {shown(kind)}", f"{path}.type")
        if kind in _MEDIA:
            return _medium(given, kind, path)
        if kind in _TEXTS:
            text = as_string(given.get(_TEXTS[kind]), f"{path}.{_TEXTS[kind]}")
            return TextPart(text)
        if kind not in _THOUGHTS:
            self.warnings.append(left_out("parts", kind, 1))
        return None

    def _calls(self, given: object, path: str) -> tuple[Call, ...]:
        if given is None:
            return ()
        given = as_array(given, path)
        found = (self._call(call, f"{path}.{index}") for index, call in enumerate(given))
        return tuple(call for call in found if call is not None)

    def _call(self, given: object, path: str) -> Call | None:
        given = as_object(given, path)
        kind = "function" if given.get("type") is None else given["type"]
        if not isinstance(kind, str):
            raise wrong_type(f"{path}.type", "a type such as function", kind)
        if kind not in ("function", "custom"):
            self.warnings.append(left_out("tool calls", kind, 1))
            return None
        called = as_object(given.get(kind), f"{path}.{kind}")
        name, call_id = called.get("name"), given.get("id")
        name = as_string(name, f"{path}.{kind}.name")
        if call_id is not None and not isinstance(call_id, str):
            raise wrong_type(f"{path}.id", "a string", call_id)
        if kind == "custom":
            return Call(name, input_arguments(text_of(called, "input", f"{path}.custom")), call_id or "")
        return Call(name, _arguments(called, f"{path}.function.arguments"), call_id or "")


def _medium(given: dict[str, Any], kind: str, path: str) -> Media:
    """A part of OpenAI's chat, or of its Responses, which clients mix in."""
    if kind == "file":
        file = given.get("file")
        return file_of(file if isinstance(file, dict) else {}, f"{path}.file")
    if kind == "input_file":
        return file_of(given, path)
    at = f"{path}.type"
    if kind == "input_image":
        return Media("image", at=at, source=image_source(given, *_PLACES))
    return Media(_MEDIA[kind], at=at, source=link(given.get(kind), *_PLACES))


def _thought(part: object) -> str:
    """Return the text of a reasoning part (Mistral's, and Anthropic's in proxies)."""
    if not isinstance(part, dict) or part.get("type") not in _THOUGHTS:
        return ""
    text = next((part[key] for key in ("thinking", "reasoning", "text") if key in part), "")
    if isinstance(text, list):
        return "".join(each["text"] for each in text if isinstance(each, dict) and isinstance(each.get("text"), str))
    return text if isinstance(text, str) else ""


def _arguments(function: dict[str, Any], path: str) -> str:
    if "arguments" not in function:
        raise InvalidRequest(f"{path}: is required", path)
    arguments = function["arguments"]
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else json_text(arguments)
