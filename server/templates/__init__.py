"""Conversations to prompts, by the model's own Jinja2 template.

`template.ChatTemplate` is the entry point. Templates are untrusted programs in models, so sandboxed processes render
them: `isolated` sends requests, and `jinja` renders in such a process. `capabilities` renders probes to detect what a
template can show, and `adaptation` converts messages to that form.
"""
