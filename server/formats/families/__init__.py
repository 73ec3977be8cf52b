"""The formats, grouped by the syntax of a call's arguments. The order matters: the first format that matches is used.

``json_objects``: one JSON object has the name and the arguments. ``named_json``: the name in markup, then JSON.
``messages``: messages with headers. ``parameters``: markup around each argument. ``python``: Python calls.
``nested``: bare keys in braces, and elements.
"""
