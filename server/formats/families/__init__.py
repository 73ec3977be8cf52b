"""The formats, grouped by the syntax of a call's arguments.

``json_objects``: one JSON object has the name and the arguments. ``named_json``: the name in markup, then JSON.
``messages``: messages with headers. ``parameters``: markup around each argument. ``python``: Python calls.
``nested``: bare keys in braces, and elements.

The text below each constant begins with its models, and has an example where the syntax does not show the format.
docs/tool-formats.md has outputs of every format.
"""
