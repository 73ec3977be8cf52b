"""API dialects. The path of a request is the same in each:

    parse(body) ─▶ ParsedRequest      `parse`: everything that needs no model is checked; the body is not kept
    .generation(context)              the engine requests and the `Writer` of the reply (`dialect`)
    writer.feed(event) ─▶ SSE bytes   `write`: an engine event becomes events of the stream
    writer.body() ─▶ one object       `write`: the whole reply, from the same engine events

The dialects are `chat`, `completions`, `messages` (Anthropic), `responses`, `native` (llama-server's own), `ollama`,
`transcriptions` and `vectors` (embeddings, rerank). docs/adding.md adds a dialect step by step. This package does not
depend on a web framework; `server.routes` binds a dialect to a path.

All dialects share `fields` (types of fields and their errors), and `generation` with `sampling`, `adapters` and
`constraints` (from fields to the engine request). Parts of bodies are in `content`, in `tools` with `tool_types` and
`custom_tools`, and in `mcp` (tools that this server calls). Parts of replies are in `warnings` (fields without effect),
`errors`, `usage` and `common`.

Unknown fields are ignored, as in llama-server, and listed in a response header. A known field with a wrong type or
value is an `InvalidRequest` that names it. ``null`` is the same as absent.
"""
