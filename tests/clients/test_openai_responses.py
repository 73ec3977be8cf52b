"""The Responses API with the official client: on random weights what it is made of, on the demo model what it says."""

import json
import re
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseStreamEvent
from pydantic import BaseModel, Field

MODEL = "gpt-4o-mini"  # with one model, any name is accepted
ON: dict[str, Any] = {"ignore_eos": True}  # random weights may end at once
OPTIONS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "extra_body": ON}
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
QUESTION = "What is the weather in Paris?"


class Answer(BaseModel):
    """What the reply must be."""

    colour: Literal["red", "green"]
    count: int = Field(ge=10, le=99)
    sure: bool


def the_call(response: Response) -> Any:
    [call] = [item for item in response.output if item.type == "function_call"]
    return call


def test_a_response_has_text_usage_and_a_status(client: OpenAI) -> None:
    response = client.responses.create(**OPTIONS, instructions="be brief", input="hello", metadata={"k": "v"})
    assert response.object == "response"
    assert response.output_text
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    assert response.usage.total_tokens == response.usage.input_tokens + 16
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("be brief", {"k": "v"}, 16)


def test_a_stream_says_what_the_response_says(client: OpenAI) -> None:
    whole = client.responses.create(**OPTIONS, input="hello")
    events: list[ResponseStreamEvent] = list(client.responses.create(**OPTIONS, input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text


def test_the_conversation_goes_on_by_id(client: OpenAI) -> None:
    first = client.responses.create(**OPTIONS, input="hello")
    by_id = client.responses.create(**OPTIONS, input="more", previous_response_id=first.id)
    turns: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "more"},
    ]
    by_items = client.responses.create(**OPTIONS, input=turns)
    assert by_id.output_text == by_items.output_text
    assert by_id.previous_response_id == first.id
    assert by_id.usage is not None
    assert by_id.usage.input_tokens_details.cached_tokens > 0


def test_items_of_a_response_are_taken_back_as_they_are(client: OpenAI) -> None:
    first = client.responses.create(**OPTIONS, input="hello")
    turns: Any = [{"role": "user", "content": "hello"}, *first.output, {"role": "user", "content": "more"}]
    by_items = client.responses.create(**OPTIONS, input=turns)
    by_id = client.responses.create(**OPTIONS, input="more", previous_response_id=first.id)
    assert by_items.output_text == by_id.output_text


def test_a_stored_response_is_retrieved_and_deleted(client: OpenAI) -> None:
    response = client.responses.create(**OPTIONS, input="hello")
    assert client.responses.retrieve(response.id) == response
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.create(**OPTIONS, input="more", previous_response_id=response.id)


def test_all_clients_of_a_server_without_keys_share_what_is_stored(client: OpenAI) -> None:
    response = client.responses.create(**OPTIONS, input="hello")
    assert client.with_options(api_key="sk-of-another").responses.retrieve(response.id).id == response.id


def test_input_tokens_are_counted(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="hello", instructions="be brief")
    response = client.responses.create(**OPTIONS, input="hello", instructions="be brief")
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


def test_log_probabilities_come_with_the_text(client: OpenAI) -> None:
    response = client.responses.create(
        **OPTIONS, input="hello", include=["message.output_text.logprobs"], top_logprobs=2
    )
    message = response.output[0]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert len(part.logprobs) == 16
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


def test_parse_gives_an_object_of_the_wanted_type(client: OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="hello", text_format=Answer, max_output_tokens=400)
    assert isinstance(response.output_parsed, Answer)


def test_the_stream_helper_parses_too(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hello", text_format=Answer, max_output_tokens=400) as stream:
        done = [event for event in stream if event.type == "response.output_text.done"]
        response = stream.get_final_response()
    assert isinstance(response.output_parsed, Answer)
    assert json.loads(done[0].text) == response.output_parsed.model_dump()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_that_is_asked_for_has_its_schema(client: OpenAI, choice: Any) -> None:
    closed = Answer.model_json_schema() | {"additionalProperties": False}  # random weights would go on for ever
    tool: Any = {**WEATHER, "parameters": closed}
    response = client.responses.create(
        model=MODEL, input="hello", tools=[tool], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=400
    )
    Answer.model_validate_json(the_call(response).arguments)


def test_a_mistake_is_a_bad_request_that_names_the_field(client: OpenAI) -> None:
    search: Any = {"type": "web_search"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="hello", tools=[search], tool_choice=search)
    assert caught.value.param == "tool_choice.type"


PATCH = """start: "*** Begin" LF line{1,3} "*** End" LF?
line: ("+" | "-") /[^\\n\\d]{1,12}/ LF
%import common.LF
"""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("syntax", "definition", "wanted"),
    [
        ("lark", PATCH, r"\*\*\* Begin\n([+-][^\n\d]{1,12}\n){1,3}\*\*\* End\n?"),
        ("regex", r'[a-z]{2,5}: "\d{3}"\n', r'[a-z]{2,5}: "\d{3}"\n'),
    ],
)
def test_a_custom_tools_grammar_holds(
    client: OpenAI, stream: bool, syntax: Literal["lark", "regex"], definition: str, wanted: str
) -> None:
    """Random weights know no grammar: what matches one was held to it."""
    format_: Any = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool: Any = {"type": "custom", "name": "patch", "description": "Edits a file.", "format": format_}
    options: Any = {"input": "go", "tools": [tool], "tool_choice": {"type": "custom", "name": "patch"}}
    options |= {"model": MODEL, "max_output_tokens": 400, "extra_body": {"seed": 3}}
    if not stream:
        [call] = client.responses.create(**options).output
        assert call.type == "custom_tool_call"
        assert re.fullmatch(wanted, call.input), call.input
        return
    events = list(client.responses.create(**options, stream=True))
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert re.fullmatch(wanted, done.input), done.input
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == done.input


@pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning")  # the client's
def test_a_websocket_carries_one_response_after_the_other(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "store": False}
    whole = client.responses.create(**asked, input="hello")
    with client.responses.connect() as connection:
        responses: list[Response] = []
        for words in ("hello", "and now?"):
            before: Any = {"previous_response_id": responses[-1].id} if responses else {}
            connection.response.create(**asked, input=words, **before)
            for event in connection:
                if event.type in ("response.completed", "response.incomplete"):
                    responses.append(event.response)
                    break
        connection.response.create(model=MODEL, input="x", temperature="hot")  # type: ignore[arg-type]
        wrong = connection.recv()
    assert responses[0].output_text == whole.output_text
    assert responses[1].usage is not None
    assert responses[0].usage is not None
    assert responses[1].usage.input_tokens > responses[0].usage.total_tokens
    assert wrong.type == "error"
    assert "temperature" in str(wrong)


async def test_the_asynchronous_client_streams(async_client: AsyncOpenAI) -> None:
    stream = await async_client.responses.create(**OPTIONS, input="hello", stream=True)
    kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")


def respond(client: OpenAI, given: Any, *, stream: bool, **options: Any) -> Response:
    options |= {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_output_tokens": 200}
    if not stream:
        response: Response = client.responses.create(input=given, **options)
        return response
    with client.responses.stream(input=given, **options) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("by_id", [True, False])
def test_the_demo_model_does_the_whole_loop(demo_client: OpenAI, choice: str, stream: bool, by_id: bool) -> None:
    """Question, call, the call's output, answer."""
    asked = respond(demo_client, QUESTION, stream=stream, tool_choice=choice, store=by_id)
    call = the_call(asked)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    output = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"temperature": 21, "condition": "sunny"}',
    }
    if by_id:
        answer = respond(demo_client, [output], stream=stream, previous_response_id=asked.id)
    else:
        turns = [{"role": "user", "content": QUESTION}, *asked.output, output]
        answer = respond(demo_client, turns, stream=stream, store=False)
    assert answer.status == "completed"
    assert "sunny" in answer.output_text


def test_the_demo_models_thoughts_are_an_item(demo_client: OpenAI) -> None:
    stream = demo_client.responses.create(
        model=MODEL,
        input="What is the capital of France?",
        temperature=0,
        max_output_tokens=200,
        stream=True,
        extra_body={"enable_thinking": True},
    )
    events = list(stream)
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["reasoning", "message"]
    thoughts = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    reasoning = last.response.output[0]
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == thoughts
    assert last.response.usage is not None
    assert last.response.usage.output_tokens_details.reasoning_tokens > 0
