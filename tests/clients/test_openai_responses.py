"""The Responses API with the official client: on random weights what it is made of, on the demo model what it says."""

import json
import re
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel, Field

MODEL = "gpt-4o-mini"  # with one model, any name is accepted
ON: dict[str, Any] = {"ignore_eos": True}  # random weights may end at once
OPTIONS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "extra_body": ON}


class Answer(BaseModel):
    """What the reply must be."""

    colour: Literal["red", "green"]
    count: int = Field(ge=10, le=99)
    sure: bool


def test_the_stream_helper_parses_too(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hello", text_format=Answer, max_output_tokens=400) as stream:
        done = [event for event in stream if event.type == "response.output_text.done"]
        response = stream.get_final_response()
    assert isinstance(response.output_parsed, Answer)
    assert json.loads(done[0].text) == response.output_parsed.model_dump()


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
