"""A client for MCP servers (Model Context Protocol), whose tools this server calls for a model.

`config` parses the configured servers. `servers` lists and calls tools. It opens a `connection` on demand, over stdio
or streamable HTTP. Only this package imports the official `mcp` package, an optional extra, at the first connection.
"""
