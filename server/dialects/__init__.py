"""API dialects. A request takes one way through a dialect, whichever it is:

    parse(body) ─▶ ParsedRequest      `parse`: what needs no model is checked, frozen; the body ends here
    .generation(context)              the engine's requests, and the `Writer` of the reply (`dialect`)
    writer.feed(event) ─▶ SSE bytes   `write`: each event of the engine as the stream's events
    writer.body() ─▶ one object       the fold of the same events

The dialects are `chat`, `completions`, `messages` (Anthropic), `responses`, `native` (llama-server's own), `ollama`,
`transcriptions` and `vectors` (embeddings, rerank). docs/adding.md adds a dialect step by step. This package knows
neither HTTP nor a web framework; `server.routes` binds a dialect to a path.

Shared by all: `fields` (types of fields and their errors), `generation` with `sampling`, `adapters` and `constraints`
(a body's fields and the engine request), `content` (content parts), `tools` with `tool_types` and `custom_tools`, `mcp`
(tools that this server calls, in rounds), `warnings` (fields without effect), `errors`, `usage`, `common` (parts of
replies). Unknown fields are ignored, as in llama-server, and listed in a header. A known field with a wrong type or
value is an `InvalidRequest` that names it. ``null`` is the same as absent.
"""
