"""One small client per dialect, which sends a `Query` in its API and reads the reply into an `Answer`.

`test_dialect_contract.py` runs over `DIALECTS`. Replies and stream events are validated by the types of the API's
official client, if there is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ollama
import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.scripted import tool_call
from tests.api.streams import events, native_events, typed_events, whole_message

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
TOOL = {"name": "look", "description": "Looks.", "schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
"""A schema that only one object matches."""


@dataclass
class Answer:
    """A dialect-neutral reply. ``n_cached`` is None if the dialect does not report it."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # id, name, arguments
    reason: str = ""  # the dialect's finish reason
    n_prompt: int = 0
    n_output: int = 0
    n_cached: int | None = None
    items: Any = None  # what the client sends back as the assistant turn


@dataclass(frozen=True)
class Query:
    """A dialect-neutral request."""

    text: str = "Hi"
    stop: str | None = None
    limit: int | None = 100
    tools: bool = False
    schema: bool = False
    image: bool = False
    previous: Answer | None = None  # the assistant turn with a tool call, whose result is `result`
    result: str = ""


def _function(body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    arguments = body["arguments"]
    return body.get("id", ""), body["name"], arguments if isinstance(arguments, dict) else orjson.loads(arguments)


def _set(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return body | {name: value for name, value in fields.items() if value is not None}


class Dialect:
    """One endpoint that generates text. `features`: calls, reasoning, images, schema, chat."""

    name: str
    path: str
    features: frozenset[str] = frozenset({"chat", "calls", "reasoning", "images", "schema"})
    stream_type = "text/event-stream"
    stream_fields: ClassVar[dict[str, Any]] = {"stream": True}
    """The fields of a body that request a stream with usage."""
    count_path: ClassVar[str] = ""
    """The endpoint that only counts a body's prompt tokens, "" if there is none."""
    finish_reasons: ClassVar[dict[str, str]]
    """The dialect's finish reason for each of: end, limit, stop, calls."""

    def body(self, query: Query) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, reply: Any) -> Answer:
        """Validate and read a reply that is not a stream."""
        raise NotImplementedError

    def streamed(self, raw: str) -> Answer:
        """Validate and read a complete stream."""
        raise NotImplementedError

    def error(self, body: Any) -> str:
        """Validate the body of an error. Return its message."""
        assert {"code", "message", "type"} <= set(body["error"])
        message: str = body["error"]["message"]
        return message

    def stream_error(self, raw: str) -> str:
        """Return the message of the error that ends a stream."""
        return self.error(orjson.loads(raw.strip().rsplit("\n\n", 1)[-1].split("data: ", 1)[1]))


STREAM_WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Chat(Dialect):
    name, path, stream_fields = "chat", "/v1/chat/completions", STREAM_WITH_USAGE
    count_path = f"{path}/input_tokens"
    finish_reasons: ClassVar = {"end": "stop", "limit": "length", "stop": "stop", "calls": "tool_calls"}

    def body(self, query: Query) -> dict[str, Any]:
        content: Any = query.text
        if query.image:
            url = {"url": f"data:image/png;base64,{IMAGE}"}
            content = [{"type": "text", "text": query.text}, {"type": "image_url", "image_url": url}]
        messages: list[Any] = [{"role": "user", "content": content}]
        if query.previous is not None:
            call_id = query.previous.calls[0][0]
            messages += [query.previous.items, {"role": "tool", "tool_call_id": call_id, "content": query.result}]
        function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["schema"]}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
        return _set(
            {"messages": messages},
            stop=query.stop,
            max_tokens=query.limit,
            tools=[{"type": "function", "function": function}] if query.tools else None,
            response_format=form if query.schema else None,
        )

    def whole(self, reply: Any) -> Answer:
        ChatCompletion.model_validate(reply)
        [choice] = reply["choices"]
        message = choice["message"]
        assert message["role"] == "assistant"
        calls = [_function({"id": call["id"], **call["function"]}) for call in message.get("tool_calls") or ()]
        answer = Answer(
            message["content"], message.get("reasoning_content", ""), calls, choice["finish_reason"], items=message
        )
        usage = reply["usage"]
        answer.n_prompt, answer.n_output = usage["prompt_tokens"], usage["completion_tokens"]
        assert usage["total_tokens"] == answer.n_prompt + answer.n_output
        answer.n_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer

    def streamed(self, raw: str) -> Answer:
        *chunks, last = parsed = events(raw)
        assert last["choices"] == []
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        for chunk in parsed:
            state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
        calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        opened = [call["index"] for call in calls if {"id", "type"} & call.keys()]
        assert opened == list(dict.fromkeys(call["index"] for call in calls))
        return self.whole(state.current_completion_snapshot.to_dict())


class Completions(Dialect):
    name, path, features, stream_fields = "completions", "/v1/completions", frozenset({"schema"}), STREAM_WITH_USAGE
    finish_reasons: ClassVar = {"end": "stop", "limit": "length", "stop": "stop"}

    def body(self, query: Query) -> dict[str, Any]:
        schema = SCHEMA if query.schema else None
        return _set({"prompt": query.text}, stop=query.stop, max_tokens=query.limit, json_schema=schema)

    def _read(self, choices: Sequence[Any], usage: Any) -> Answer:
        answer = Answer("".join(choice["text"] for choice in choices), reason=choices[-1]["finish_reason"])
        answer.n_prompt, answer.n_output = usage["prompt_tokens"], usage["completion_tokens"]
        answer.n_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer

    def whole(self, reply: Any) -> Answer:
        Completion.model_validate(reply)
        return self._read(reply["choices"], reply["usage"])

    def streamed(self, raw: str) -> Answer:
        *chunks, last = events(raw)
        return self._read([chunk["choices"][0] for chunk in chunks], last["usage"])


class Native(Dialect):
    name, path, features = "native", "/completion", frozenset({"schema"})
    finish_reasons: ClassVar = {"end": "eos", "limit": "limit", "stop": "word"}

    def body(self, query: Query) -> dict[str, Any]:
        schema = SCHEMA if query.schema else None
        stop = [query.stop] if query.stop else None
        return _set({"prompt": query.text}, stop=stop, n_predict=query.limit, json_schema=schema)

    def whole(self, reply: Any) -> Answer:
        answer = Answer(reply["content"], reason=reply["stop_type"])
        answer.n_prompt, answer.n_output = reply["tokens_evaluated"], reply["tokens_predicted"]
        answer.n_cached = reply["timings"]["cache_n"]
        return answer

    def streamed(self, raw: str) -> Answer:
        *parts, last = native_events(raw)
        assert [part["stop"] for part in (*parts, last)] == [False] * len(parts) + [True]
        return self.whole({**last, "content": "".join(part["content"] for part in parts)})


class Messages(Dialect):
    name, path = "messages", "/v1/messages"
    count_path = f"{path}/count_tokens"
    finish_reasons: ClassVar = {"end": "end_turn", "limit": "max_tokens", "stop": "stop_sequence", "calls": "tool_use"}

    def body(self, query: Query) -> dict[str, Any]:
        content: list[Any] = [{"type": "text", "text": query.text}]
        if query.image:
            source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
            content.append({"type": "image", "source": source})
        messages: list[Any] = [{"role": "user", "content": content}]
        if query.previous is not None:
            result = {"type": "tool_result", "tool_use_id": query.previous.calls[0][0], "content": query.result}
            messages += [{"role": "assistant", "content": query.previous.items}, {"role": "user", "content": [result]}]
        tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["schema"]}
        return _set(
            {"model": "demo", "messages": messages},
            stop_sequences=[query.stop] if query.stop else None,
            max_tokens=query.limit,
            tools=[tool] if query.tools else None,
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}} if query.schema else None,
        )

    def whole(self, reply: Any) -> Answer:
        Message.model_validate(reply)
        assert (reply["type"], reply["role"]) == ("message", "assistant")
        assert (reply["stop_sequence"] is not None) is (reply["stop_reason"] == "stop_sequence")
        usage, blocks = reply["usage"], reply["content"]
        answer = Answer(reason=reply["stop_reason"], items=blocks, n_output=usage["output_tokens"])
        answer.n_cached = usage["cache_read_input_tokens"]
        answer.n_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        answer.text = "".join(block["text"] for block in blocks if block["type"] == "text")
        answer.reasoning = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
        answer.calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        return answer

    def streamed(self, raw: str) -> Answer:
        return self.whole(whole_message(typed_events(raw, TypeAdapter(RawMessageStreamEvent))))

    def error(self, body: Any) -> str:
        assert (set(body), body["type"]) == ({"type", "error", "request_id"}, "error")
        assert set(body["error"]) == {"type", "message"}
        message: str = body["error"]["message"]
        return message


class Responses(Dialect):
    name, path = "responses", "/v1/responses"
    count_path = f"{path}/input_tokens"
    finish_reasons: ClassVar = {"end": "completed", "limit": "max_output_tokens", "calls": "completed"}

    def body(self, query: Query) -> dict[str, Any]:
        content: list[Any] = [{"type": "input_text", "text": query.text}]
        if query.image:
            content.append({"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}", "detail": "auto"})
        items: list[Any] = [{"role": "user", "content": content}]
        if query.previous is not None:
            output = {"type": "function_call_output", "call_id": query.previous.calls[0][0], "output": query.result}
            items += [*query.previous.items, output]
        tool = {"type": "function", "name": TOOL["name"], "parameters": TOOL["schema"], "strict": False}
        form = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}
        return _set(
            {"input": items, "store": False},
            max_output_tokens=query.limit,
            tools=[tool] if query.tools else None,
            text=form if query.schema else None,
        )

    def whole(self, reply: Any) -> Answer:
        Response.model_validate(reply)
        usage, output = reply["usage"], reply["output"]
        answer = Answer(n_prompt=usage["input_tokens"], n_output=usage["output_tokens"], items=output)
        answer.reason = (reply["incomplete_details"] or {}).get("reason") or reply["status"]
        answer.n_cached = usage["input_tokens_details"]["cached_tokens"]
        for item in output:
            parts = "".join(part["text"] for part in item.get("content") or ())
            if item["type"] == "message":
                answer.text += parts
            elif item["type"] == "reasoning":
                answer.reasoning += parts
            else:
                answer.calls.append((item["call_id"], item["name"], orjson.loads(item["arguments"])))
        return answer

    def streamed(self, raw: str) -> Answer:
        parsed = typed_events(raw, TypeAdapter(ResponseStreamEvent))
        assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
        answer = self.whole(parsed[-1]["response"])
        text = "".join(event["delta"] for event in parsed if event["type"] == "response.output_text.delta")
        assert text == answer.text
        return answer

    def stream_error(self, raw: str) -> str:
        assert "event: response.failed" in raw
        message: str = orjson.loads(raw.split("event: error\ndata: ")[1].split("\n\n")[0])["message"]
        return message


class Ollama(Dialect):
    """Both of Ollama's endpoints. The last line has the counts; an error is one string."""

    stream_type = "application/x-ndjson"
    finish_reasons: ClassVar = {"end": "stop", "limit": "length", "stop": "stop", "calls": "stop"}

    def __init__(self, name: str, path: str, kind: type[ollama.ChatResponse] | type[ollama.GenerateResponse]) -> None:
        self.name, self.path, self.kind = name, path, kind
        if kind is ollama.GenerateResponse:
            self.features = self.features - {"calls"}

    def body(self, query: Query) -> dict[str, Any]:
        options = _set({}, stop=[query.stop] if query.stop else None, num_predict=query.limit)
        images = [IMAGE] if query.image else None
        body: dict[str, Any] = {"model": "demo", "options": options, "stream": False}
        body |= {"format": SCHEMA} if query.schema else {}
        if self.kind is ollama.GenerateResponse:
            return _set(body | {"prompt": query.text}, images=images)
        messages: list[Any] = [_set({"role": "user", "content": query.text}, images=images)]
        if query.previous is not None:
            result = {"role": "tool", "tool_name": query.previous.calls[0][1], "content": query.result}
            messages += [query.previous.items, result]
        function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["schema"]}
        tools = [{"type": "function", "function": function}] if query.tools else None
        return _set(body | {"messages": messages}, tools=tools)

    def whole(self, reply: Any) -> Answer:
        self.kind.model_validate(reply)
        message = reply.get("message", reply)
        calls = [_function(call["function"]) for call in message.get("tool_calls", ())]
        text = message["content"] if "content" in message else reply["response"]
        answer = Answer(text, message.get("thinking", ""), calls, reply["done_reason"], items=message)
        answer.n_prompt, answer.n_output = reply["prompt_eval_count"], reply["eval_count"]
        return answer

    def streamed(self, raw: str) -> Answer:
        lines = [orjson.loads(line) for line in raw.splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        messages = [line.get("message") or {"content": line["response"], **line} for line in lines]
        text, thinking = ("".join(m.get(key) or "" for m in messages) for key in ("content", "thinking"))
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        message = {"role": "assistant", "content": text, "thinking": thinking, "tool_calls": calls}
        last = lines[-1]
        return self.whole(last | ({"message": message} if "message" in last else {"response": text} | message))

    def error(self, body: Any) -> str:
        assert list(body) == ["error"]
        message: str = body["error"]
        return message

    def stream_error(self, raw: str) -> str:
        return self.error(orjson.loads(raw.splitlines()[-1]))


DIALECTS: tuple[Dialect, ...] = (
    Chat(),
    Completions(),
    Native(),
    Messages(),
    Responses(),
    Ollama("ollama-chat", "/api/chat", ollama.ChatResponse),
    Ollama("ollama-generate", "/api/generate", ollama.GenerateResponse),
)


BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


def dialects_with(*features: str, where: Callable[[Dialect], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Parametrize a test with the dialects that have all `features`."""
    found = [dialect for dialect in DIALECTS if dialect.features.issuperset(features) and where(dialect)]
    return pytest.mark.parametrize("dialect", found, ids=lambda dialect: dialect.name)


every_dialect = dialects_with()
llamapool_dialects = dialects_with(where=lambda dialect: not isinstance(dialect, Ollama))
"""The dialects that accept Llamapool's own fields besides the API's."""


def tool_calls(*arguments: dict[str, Any]) -> str:
    """Return the text of one call of `TOOL` for each of `arguments`."""
    return "\n".join(tool_call(str(TOOL["name"]), each) for each in arguments)
