"""Converts a conversation into an engine request and the generated text into a message, for all API dialects.

`conversation` defines the request. `prepare` converts it: `prompt` renders and tokenizes, `output` selects the
constraint and the parser, with `triggered_calls` and `reasoning_budget` as constraints of their own. `assembler`
builds the message from the engine's events.
"""
