"""Converts a conversation into an engine request and the generated text into a message, for all API dialects.

`conversation` defines the request. `prompt` renders and tokenizes it, and limits its reasoning. `prepare` selects the
constraint and the parser. `assembler` builds the message from the engine's events.
"""
