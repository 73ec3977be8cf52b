"""A small MCP server of the official package for tests.

``python -m tests.support.mcp_server`` serves it over stdio, and `served` over HTTP in the event loop of the test.
"""

import asyncio
import base64
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PNG = Path(__file__).parents[1] / "media_files" / "tiny.png"
STDIO: dict[str, Any] = {"command": sys.executable, "args": ["-m", "tests.support.mcp_server"]}


@dataclass
class Tools:
    """The tools, and a record of their calls."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: dict[str, Any] = field(default_factory=dict)  # HTTP sessions by id
    refusal: Response | None = None  # the answer to each HTTP request

    def make(self) -> MCPServer:
        server = MCPServer("tests", log_level="CRITICAL")

        @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
        def add(a: int, b: int) -> str:
            """Adds two numbers."""
            self.calls.append(("add", (a, b)))
            return str(a + b)

        @server.tool()
        def fail(why: str) -> CallToolResult:
            """Always fails."""
            return CallToolResult(content=[TextContent(type="text", text=why)], is_error=True)

        @server.tool(structured_output=False)
        def huge(n: int) -> str:
            """Returns many characters."""
            return "x" * n

        @server.tool()
        def image() -> CallToolResult:
            """Returns an image and a text."""
            data = base64.b64encode(PNG.read_bytes()).decode()
            content = ImageContent(type="image", data=data, mime_type="image/png")
            return CallToolResult(content=[TextContent(type="text", text="a dot"), content])

        @server.tool()
        def pay(amount: Annotated[int, Field(le=2**256)]) -> CallToolResult:
            """Has an integer above 64 bits in its schema and in its result, which is not a text."""
            return CallToolResult(content=[], structured_content={"paid": 2**256})

        @server.tool(structured_output=False)
        async def wait() -> str:
            """Never answers."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return ""

        @server.tool(name="a/b:c", structured_output=False)
        def odd_name() -> str:
            """Has a name with a slash."""
            self.calls.append(("a/b:c", ()))
            return "odd"

        @server.tool(structured_output=False)
        def environment(name: str) -> str:
            """Returns a variable of the server's environment."""
            return os.environ.get(name, "unset")

        return server


@asynccontextmanager
async def served(tools: Tools) -> AsyncIterator[str]:
    """Serve the tools over HTTP on loopback; yields the URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        mcp_server = tools.make()
        app = mcp_server.streamable_http_app()
        tools.sessions = mcp_server.session_manager._server_instances

        async def answered(scope: Scope, receive: Receive, send: Send) -> None:
            refusal = tools.refusal if scope["type"] == "http" else None
            await (refusal or app)(scope, receive, send)

        server = uvicorn.Server(uvicorn.Config(answered, log_level="critical", timeout_graceful_shutdown=0))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0)
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.should_exit = True
            await running


if __name__ == "__main__":
    Tools().make().run()
