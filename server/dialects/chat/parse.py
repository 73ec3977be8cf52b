"""OpenAI's Chat Completions: parses the body to a `ChatRequest`; `write` creates the reply.

llama.cpp's fields are accepted in addition to OpenAI's, with llama-server's rules (tools/server/server-common.cpp,
oaicompat_chat_params_parse; common/chat.cpp, common_chat_msgs_parse_oaicompat): unknown keys are ignored, null content
is "", and the arguments of a tool call are JSON text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from server.chat.conversation import Call, Conversation, Message, TextPart
from server.chat.prompt import as_text, render
from server.dialects.chat.write import ChatWriter
from server.dialects.common import Header, Json
from server.dialects.constraints import read_response_format
from server.dialects.content import REASONING, read_content
from server.dialects.custom_tools import input_arguments
from server.dialects.dialect import Context, Dialect, Generation
from server.dialects.fields import (
    MAX_MESSAGES,
    Body,
    Messages,
    Strings,
    Unsupported,
    Whole,
    as_object,
    json_text,
    objects_in,
    parse,
    string_of,
    text_of,
    wrong_type,
)
from server.dialects.generation import MAX_PROBS, ChatFields, ConversationRequest, GenerationFields, Logprobs
from server.dialects.native.write import verbose
from server.dialects.tools import ReadTool, ToolReader
from server.dialects.warnings import Omitted, unused_fields
from server.errors import invalid
from server.media.source import NO_MEDIA, LoadedMedia
from server.pool.model import LoadedModel

_OTHER_REASONING = ("thinking", "reasoning")
"""Names of ``reasoning_content`` in the replies of other servers, which clients send back."""


def read_messages(value: object, omitted: Omitted) -> list[Message]:
    """Return the messages. Raises `InvalidRequest` with a path such as ``messages.0.content.1.text``."""
    if value is None:
        raise invalid("messages", "'messages' is required")
    if not isinstance(value, list):
        raise invalid("messages", "Expected 'messages' to be an array")
    if not value:
        raise invalid("messages", "must have at least one message")
    if len(value) > MAX_MESSAGES:
        raise invalid("messages", f"must have at most {MAX_MESSAGES} messages")
    return [_message(message, f"messages.{index}", omitted) for index, message in enumerate(value)]


def _message(given: object, path: str, omitted: Omitted) -> Message:
    given = as_object(given, path)
    role = given.get("role")
    if role is None:
        raise invalid(f"{path}.role", "is required")
    if not isinstance(role, str) or not role:
        raise wrong_type(f"{path}.role", "a text such as user", role)
    if "content" not in given and role != "assistant":
        raise invalid(f"{path}.content", "All non-assistant messages must contain 'content'")
    content = "" if given.get("content") is None else given["content"]
    if not isinstance(content, str):
        content = tuple(read_content(content, f"{path}.content", omitted)) or ""
    reasoning = _reasoning(given, path, omitted)
    name, call_id = (text_of(given, key, path) for key in ("name", "tool_call_id"))
    listed = [] if given.get("tool_calls") is None else objects_in(given["tool_calls"], f"{path}.tool_calls")
    calls = [_call(call, at, omitted) for call, at in listed]
    if given.get("function_call") is not None:
        calls.append(_function_call(given["function_call"], f"{path}.function_call"))
    if role == "function":  # a tool result in OpenAI's older format
        role = "tool"
    return Message(role, content, reasoning, tuple(call for call in calls if call is not None), call_id, name)


def _reasoning(given: dict[str, Any], path: str, omitted: Omitted) -> str:
    """Return the first of: ``reasoning_content``, a string or a list of parts; the fields of other servers; reasoning
    parts of the content.
    """
    reasoning, content = given.get("reasoning_content"), given.get("content")
    if isinstance(reasoning, list):
        found = read_content(reasoning, f"{path}.reasoning_content", omitted)
        return "".join(part.text for part in found if isinstance(part, TextPart))
    if reasoning is not None:
        return text_of(given, "reasoning_content", path)
    other = next((text for text in map(given.get, _OTHER_REASONING) if isinstance(text, str) and text), "")
    if other or not isinstance(content, list):
        return other
    return "".join(map(_reasoning_text, content))


def _call(given: dict[str, Any], path: str, omitted: Omitted) -> Call | None:
    kind = "function" if given.get("type") is None else given["type"]
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a type such as function", kind)
    if kind not in ("function", "custom"):
        omitted.add("tool calls", kind)
        return None
    at, call_id = f"{path}.{kind}", text_of(given, "id", path)
    if kind == "function":
        return _function_call(given.get(kind), at, call_id)
    called = as_object(given.get(kind), at)
    return Call(string_of(called, "name", at), input_arguments(text_of(called, "input", at)), call_id)


def _function_call(given: object, path: str, call_id: str = "") -> Call:
    called = as_object(given, path)
    name = string_of(called, "name", path)
    if "arguments" not in called:
        raise invalid(f"{path}.arguments", "is required")
    arguments = {} if called["arguments"] is None else called["arguments"]
    return Call(name, arguments if isinstance(arguments, str) else json_text(arguments), call_id)


def _reasoning_text(part: object) -> str:
    """Return the text of a reasoning part in Mistral's or, from proxies, Anthropic's format; "" for other parts."""
    if not isinstance(part, dict) or part.get("type") not in REASONING:
        return ""
    text = next((part[key] for key in ("thinking", "reasoning", "text") if key in part), "")
    if isinstance(text, list):
        return "".join(each["text"] for each in text if isinstance(each, dict) and isinstance(each.get("text"), str))
    return text if isinstance(text, str) else ""


class ChatTools(ToolReader):
    """Parses ``tools`` of a chat: functions and custom tools, each in a member with the name of its type."""

    def read(self, entry: dict[str, Any], path: str) -> Iterator[ReadTool]:
        kind = entry.get("type")
        if not isinstance(kind, str):
            raise wrong_type(f"{path}.type", "a type such as function", kind)
        if kind not in ("function", "custom"):
            self.omit(kind)
            return
        tool, at = entry.get(kind), f"{path}.{kind}"
        if tool is None and kind == "custom":  # flat, like in Responses
            tool, at = entry, path
        yield self.function(as_object(tool, at), at, custom=kind == "custom"), f"{at}.name", False


class ControlBody(Body):
    """The body of ``POST /v1/chat/completions/control``. Without ``model``, the completion of any model matches."""

    texts_of_errors: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("id", "id?"), "missing completion id"),
        **dict.fromkeys(("action", "action?"), "unknown control action; known: 'reasoning_end' and 'cancel'"),
    }
    id: Annotated[str, Field(min_length=1)]
    action: Literal["reasoning_end", "cancel"]
    model: str | None = None


DEFAULT_TOP_LOGPROBS = 20  # llama-server's, for logprobs without top_logprobs
_UNSUPPORTED = {
    "audio": "audio output is not supported",
    "web_search_options": "web search is not supported",
}


class ChatBody(ChatFields):
    """The body of ``POST /v1/chat/completions`` and ``/apply-template``."""

    messages: Messages = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_PROBS)] | None = None
    echo: bool | None = None
    modalities: Strings = None
    audio: Unsupported = None
    web_search_options: Unsupported = None


_CONVERSATION_FIELDS = dict.fromkeys(("messages", "tools", "response_format"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(ConversationRequest):
    """A parsed chat request. ``custom``: the names of its custom tools."""

    options: ChatBody
    custom: frozenset[str] = frozenset()

    def generation(self, context: Context) -> Generation:
        options, header = self.options, Header(context.model.spec.id)
        output, request = self.prepare(context, header.id, self.conversation)
        prefilled = output.prompt.prefilled
        # llama-server repeats the continued message in whole replies; in streams only with "echo".
        repeated = prefilled if options.echo or not options.stream else ""
        writer = ChatWriter(self, header, output.parser, repeated)
        generation, opening = Generation([request], writer, output.switch), output.prompt.generation_prompt
        return verbose(generation, options, context, output.response_format, opening)


def parse_chat(given: dict[str, Any]) -> ChatRequest:
    body = parse(ChatBody, given)
    for name, reason in _UNSUPPORTED.items():
        if getattr(body, name) is not None:  # {} is a valid value
            raise invalid(name, reason)
    if body.modalities not in (None, ["text"]):
        raise invalid("modalities", 'only ["text"] is supported')
    omitted, warnings = Omitted(), list[str]()
    messages, reader = read_messages(body.messages, omitted), ChatTools(body.tools)
    tools = reader.finish(body.tool_choice, body.parallel_tool_calls, warnings)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs requires logprobs to be set to true")
    conversation = body.as_conversation(messages, tools, read_response_format(body))
    return ChatRequest(
        options=body.model_copy(update=_CONVERSATION_FIELDS),
        media=conversation.media,
        warnings=unused_fields(given, ChatBody, [*omitted.warnings(), *warnings]),
        conversation=conversation,
        logprobs=chat_logprobs(body, body.logprobs, body.top_logprobs),
        custom=frozenset(name for name, known in reader.names.items() if known.custom),
    )


CHAT = Dialect(parse_chat)


def input_tokens(conversation: Conversation, model: LoadedModel, media: LoadedMedia = NO_MEDIA) -> Json:
    """Return the reply of ``/input_tokens`` for a chat or a response: the number of prompt tokens."""
    return {"input_tokens": render(conversation, model).count(model, media), "object": "response.input_tokens"}


def apply_template(conversation: Conversation, model: LoadedModel, media: LoadedMedia = NO_MEDIA) -> Json:
    """Return the reply of ``POST /apply-template``: the prompt, with the model's marker for each media part."""
    marker = "" if model.media is None else model.media.marker
    return {"prompt": as_text(render(conversation, model).parts, marker, media)}


def chat_logprobs(options: GenerationFields, logprobs: bool | None, n_top: int | None) -> Logprobs:
    """Return the setting for ``logprobs`` and ``top_logprobs`` (`n_top`), otherwise for ``n_probs``."""
    if logprobs:
        return Logprobs(True, DEFAULT_TOP_LOGPROBS if n_top is None else n_top)
    return Logprobs.of(options.n_probs)
