"""MCP servers of the official package behind a real server, as the official clients use them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.mcp_server import STDIO
from tests.support.real_server import REPLY_S, ROOT, RealServer, llamapool

RESPONSE, EVENT = TypeAdapter[Response](Response), TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)
MESSAGE = TypeAdapter[BetaMessage](BetaMessage)
TOOL: Any = {"type": "mcp", "server_label": "calc", "require_approval": "never", "allowed_tools": ["add"]}
CHOICE: Any = {"type": "mcp", "server_label": "calc", "name": "add"}
QUESTION = "What is 1 plus 2? Add them."


@pytest.fixture(scope="module")
def served() -> Iterator[RealServer]:
    """The default model with one MCP server over stdio."""
    servers = json.dumps({"mcpServers": {"calc": {**STDIO, "cwd": str(ROOT)}}})
    flags = ("-c", "8192", "-np", "2", "-t", "1", "-a", "demo", "--mcp-servers-json", servers, "--mcp-api", "calc")
    environment = {"OMP_WAIT_POLICY": "passive", "LLAMAPOOL_SERVER__STATE": "memory"}
    with llamapool(ROOT / "models" / "demo.gguf", *flags, environment=environment) as running:
        yield running


@pytest.fixture
def client(served: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.base_url}/v1", api_key="none", max_retries=0, timeout=REPLY_S) as openai:
        yield openai


def test_openais_client_gets_the_loop_in_one_response(client: OpenAI) -> None:
    asked: Any = {"model": "demo", "input": QUESTION, "tools": [TOOL], "tool_choice": CHOICE, "temperature": 0}
    whole = client.responses.create(**asked)
    RESPONSE.validate_python(json.loads(whole.to_json()))
    listed, called, *rest = whole.output
    assert (listed.type, called.type) == ("mcp_list_tools", "mcp_call")
    assert called.status == "completed"
    assert called.output == str(sum(json.loads(called.arguments).values()))
    assert any(item.type == "message" for item in rest)
    found = [EVENT.validate_python(event.model_dump()) for event in client.responses.create(**asked, stream=True)]
    kinds = [event.type for event in found]
    assert "response.mcp_call_arguments.done" in kinds
    assert kinds.index("response.mcp_list_tools.completed") < kinds.index("response.mcp_call.in_progress")
    assert kinds.index("response.mcp_call.completed") < kinds.index("response.output_text.delta")
    last = found[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    after = client.responses.create(model="demo", input="Thanks.", tools=[TOOL], previous_response_id=whole.id)
    assert not any(item.type == "mcp_list_tools" for item in after.output)
