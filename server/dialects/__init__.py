"""API dialects: a dialect parses a body to engine requests, and converts engine events to a response or to SSE bytes.

This package knows neither HTTP nor a web framework; `server.routes` binds a dialect to a path. Each dialect has a
folder: `chat`, `completions`, `messages` (Anthropic), `responses`, `native` (llama-server's own), `ollama`,
`transcriptions`, `vectors` (embeddings, rerank). Its `read` validates the body and returns the `Generation`; its
`write` converts the events. docs/adding.md adds a dialect step by step.

Shared modules for requests: `fields` (types and messages), `generation` with `sampling`, `logit_bias`, `adapters`
and `constraints` (the response format); `thinking`; `tools` with ``tool_choice``, `custom_tools` (OpenAI's); `media`
(images and audio); `warnings` (fields without effect). For responses: `common`, `verbose`. Unknown fields are
ignored, as in llama-server, and listed in a header. A known field with a wrong type or value is an `InvalidRequest`
that names it. ``null`` is the same as absent.
"""
