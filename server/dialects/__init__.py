"""Wire formats, in and out: a body becomes engine requests, engine events become a reply or ready SSE bytes.

Nothing here knows HTTP or a web framework; `server.routes` joins a dialect to a path. Reading order: `fields`
(types and messages), `sampling` and `generation` (what all dialects share), `wire` (pieces of replies), then one
dialect: `openai_chat` with `chat_messages`, `chat_tools`, `chat_output` (constraints), `chat_reply`, `chat_stream`;
`responses_generation` with `responses_body`, `responses_input`, `responses_items` (output), `responses_reply`,
`responses_stream`, `responses_store`; `openai_completions` with `completion_prompt`, `completion_reply`; `native`
(llama-server's own) with `native_body`, `native_reply`, `native_stream`, `generation_settings`; `infill` with `fim`;
`tokens`. `older` is about fields that llama-server no longer has.

Fields that no dialect knows are ignored, as llama-server does; a known field with a wrong type or value is an
`InvalidRequest` that names it; ``null`` is the same as absent.
"""
