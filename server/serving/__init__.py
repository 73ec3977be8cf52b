"""What the endpoints of `server.routes` share.

`services` has the application's services and the client of a request. `session` leads a request through the pool and
the engine, and `generate` makes its HTTP reply. `batch_runner` runs batches, `stored` finds stored objects and pages
lists, and `mcp` lists the tools of MCP servers.
"""
