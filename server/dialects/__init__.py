"""Wire formats, in and out: a body becomes engine requests, engine events become a reply or ready SSE bytes.

Nothing here knows HTTP or a web framework; `server.routes` joins a format to a path. One folder each: `chat`,
`completions`, `messages` (Anthropic), `responses`, `native` (llama-server's own), `ollama`, `transcriptions`,
`vectors` (embeddings, rerank). In each `read` checks the body and makes the `Generation`, `write` makes the reply of
its events; docs/adding.md walks through a new one.
Beside them what they share. Of bodies: `fields` (types and messages), `generation`, and in it `sampling`, `logit_bias`,
`adapters`, `constraints` (what the output must match); `thinking`; `tools` with ``tool_choice``, `custom_tools`
(OpenAI's); `media` (where pictures and sounds are); `warnings` (what is left out). Of replies: `common`, `verbose`.

Fields that no format knows are ignored, as llama-server does, and named in a header; a known field with a wrong type
or value is an `InvalidRequest` that names it; ``null`` is the same as absent.
"""
