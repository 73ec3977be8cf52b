"""OpenAI chat completions: parses the body to a `Conversation` and one engine request.

All of llama.cpp's fields are accepted in addition to OpenAI's (tools/server/server-common.cpp,
oaicompat_chat_params_parse). `write` creates the response.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from server.chat.conversation import Conversation
from server.chat.prepare import prepare, prompt_of
from server.chat.prompt import as_text
from server.dialects.chat.functions import read_functions, with_tools
from server.dialects.chat.known import FUNCTION, MESSAGE, TOOL, TOOL_CHOICE
from server.dialects.chat.messages import read_messages
from server.dialects.chat.tools import ChatTools, read_tools
from server.dialects.chat.write import ChatReplyOptions, ChatWriter
from server.dialects.common import Header, Json
from server.dialects.constraints import read_shape
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.fields import Whole, parse
from server.dialects.generation import INNER_FIELDS, MAX_PROBS, GenerationFields, Logprobs, prepared_request
from server.dialects.known import fields_of
from server.dialects.thinking import ReasoningFields, read_thinking, template_kwargs
from server.dialects.verbose import verbose
from server.dialects.warnings import unused_fields
from server.errors import InvalidRequest
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel

DEFAULT_TOP_LOGPROBS = 20  # llama-server's, for logprobs without top_logprobs
_REFUSED = {
    "audio": "audio output is not supported",
    "web_search_options": "web search is not supported",
}


class ChatBody(ReasoningFields):
    """The body of ``POST /v1/chat/completions`` and ``/apply-template``."""

    messages: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    parse_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_PROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    echo: bool | None = None
    modalities: Any = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None

    @property
    def old(self) -> bool:
        """Whether calls are spoken of in the words of 2023 (`functions`)."""
        return bool(self.functions) or self.function_call is not None


FIELDS = INNER_FIELDS | fields_of(ChatBody, messages=MESSAGE, tools=TOOL, functions=FUNCTION, tool_choice=TOOL_CHOICE)
"""The fields of the body, at any depth."""


_CONVERSATION_FIELDS = dict.fromkeys(("messages", "tools", "functions", "response_format"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(ParsedRequest):
    """A chat request before a model renders it.

    ``custom``: the names of its custom tools. ``calls_functions``: calls are `functions` of 2023. ``echo``: a stream
    repeats the content that it continues.
    """

    conversation: Conversation
    logprobs: Logprobs
    custom: frozenset[str] = frozenset()
    calls_functions: bool = False
    echo: bool = False

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the request and the writer of its reply; blocking, for a thread. Raises `InvalidRequest`."""
        options, header = self.options, Header(model.spec.id)
        prepared = prepare(self.conversation, model, seen)
        request = prepared_request(prepared, options, model, header.id, self.logprobs, caller=caller)
        output, prefilled = prepared.output, prepared.prompt.prefilled
        reply = ChatReplyOptions(self.calls_functions, request.post_sampling_probs, self.custom)
        # llama-server repeats the continued message in full responses; in streams only with "echo".
        repeated = prefilled if self.echo or not options.stream else ""
        writer = ChatWriter(header, output.parser, include_usage=options.include_usage, opening=repeated, options=reply)
        opening = prepared.prompt.rendered.generation_prompt
        return verbose(Generation([request], writer, output.switch, opening), options, model, caller)


def parse_chat(given: dict[str, Any]) -> ChatRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    body = parse(ChatBody, given)
    for name, reason in _REFUSED.items():
        if getattr(body, name) is not None:  # OpenAI's own example of a search is {}
            raise InvalidRequest(f"{name}: {reason}", name)
    if body.modalities not in (None, ["text"]):
        raise InvalidRequest('modalities: only ["text"] is supported', "modalities")
    warnings: list[str] = []
    messages = read_messages(with_tools(body.messages), warnings)
    chat_tools = _read_tools(body, warnings)
    tools = chat_tools.tools
    if tools.callable and body.grammar:
        raise InvalidRequest("grammar: Cannot use custom grammar constraints with tools.", "grammar")
    if tools.callable and body.grammar_lazy:
        raise InvalidRequest("grammar_lazy: tools have triggers of their own", "grammar_lazy")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs: top_logprobs requires logprobs to be set to true", "top_logprobs")
    thinking, variables = read_thinking(body), template_kwargs(body.chat_template_kwargs)
    conversation = Conversation(
        tuple(messages),
        tools,
        thinking,
        read_shape(body),
        body.lazy,
        template_kwargs=variables,
        opens=body.add_generation_prompt,
        continues=body.continue_final_message,
        reads_calls=body.parse_tool_calls is not False,
    )
    return ChatRequest(
        options=body.model_copy(update=_CONVERSATION_FIELDS),
        media=conversation.media,
        warnings=unused_fields(given, FIELDS, warnings),
        conversation=conversation,
        logprobs=chat_logprobs(body, body.logprobs, body.top_logprobs),
        custom=chat_tools.custom,
        calls_functions=body.old,
        echo=bool(body.echo),
    )


CHAT = Dialect(parse_chat)


def _read_tools(body: ChatBody, warnings: list[str]) -> ChatTools:
    """Tools, or the functions that were before them."""
    if not body.old:
        return read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, warnings)
    for name in ("tools", "tool_choice"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"{name}: can't be used together with functions and function_call", name)
    return ChatTools(read_functions(body.functions, body.function_call))


def input_tokens(conversation: Conversation, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """The reply of ``/input_tokens``, of a chat and of Responses: how many the prompt has."""
    return {"input_tokens": prompt_of(conversation, model).count(model, seen), "object": "response.input_tokens"}


def apply_template(conversation: Conversation, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """The reply of ``POST /apply-template``: the prompt, with the model's marker for each medium."""
    marker = "" if model.media is None else model.media.marker
    return {"prompt": as_text(prompt_of(conversation, model).parts, marker, seen)}


def chat_logprobs(options: GenerationFields, wanted: bool | None, n_top: int | None) -> Logprobs:
    """Return the log probabilities for ``logprobs`` and ``top_logprobs``, otherwise those for ``n_probs``."""
    if wanted:
        return Logprobs(True, DEFAULT_TOP_LOGPROBS if n_top is None else n_top)
    return Logprobs(options.n_top > 0, options.n_top)
