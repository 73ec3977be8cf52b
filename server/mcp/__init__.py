"""The client of MCP servers (Model Context Protocol), whose tools this server calls for a model.

`config` reads which servers are configured. `servers` lists and calls tools; it opens a `connection` where there is
none, over stdio or streamable HTTP (`http`). Only this package imports the official `mcp` package, which is an extra;
it is imported with the first connection.
"""
