"""Wire formats, in and out: a body becomes engine requests, engine events become a reply or ready SSE bytes.

Nothing here knows HTTP or a web framework; `server.routes` joins a dialect to a path. Reading order: `fields`
(types and messages), `sampling` and `generation` (what all dialects share), `wire` (pieces of replies), then one
dialect: `openai_chat` with `chat_messages`, `chat_tools`, `chat_output` (constraints), `chat_reply`, `chat_stream`;
`openai_completions` with `completion_prompt`, `completion_reply`; `tokens`.

Fields that no dialect knows are ignored, as llama-server does; a known field with a wrong type or value is an
`InvalidRequest` that names it; ``null`` is the same as absent.
"""
