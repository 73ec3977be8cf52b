"""Code that the endpoints of `server.routes` share.

`services` has the application's services and the client of a request. `session` runs a request in the pool and the
engine, and `generate` makes its HTTP reply. `batch_runner` runs batches, `background` background responses. `stored`
finds and lists stored objects, and `mcp` lists the tools of MCP servers.
"""
