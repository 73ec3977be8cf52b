"""Conversations to prompts, by the model's own Jinja2 template.

`template.ChatTemplate` is the entry point. Templates are part of models, so they are rendered in processes that can be
stopped: `isolated` sends requests, `isolated_worker` renders, and `jinja` is the sandbox in that process.
`capabilities` detects by rendering what a template can show, and `adaptation` converts messages to that form.
"""
