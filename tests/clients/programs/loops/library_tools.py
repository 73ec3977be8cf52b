"""An MCP server with so many tools that a client lets the model search them: one for each shelf of a library."""

from collections.abc import Callable

from mcp.server.mcpserver import MCPServer

N_TOOLS = 60


def main() -> None:
    """Serve over stdio until the client disconnects."""
    server = MCPServer("library", log_level="CRITICAL")
    for number in range(N_TOOLS):
        description = f"Reads a page of the book on shelf {number}."
        server.add_tool(_reader(number), name=f"shelf_{number}", description=description, structured_output=False)
    server.run("stdio")


def _reader(number: int) -> Callable[[int], str]:
    def read(page: int) -> str:
        return f"BOOK-{number}, page {page}."

    return read


if __name__ == "__main__":
    main()
