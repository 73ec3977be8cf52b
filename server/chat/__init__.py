"""Between messages and text: templates (`template`, `jinja`, `capabilities`, `messages`), what the output means
(`parser`, `reasoning`, one file per format in `formats`), and grammars that force a call (`tool_choice`).

Formats are generators over a `turn`, which is a `reader` that writes `pieces`. They share `json_calls` (over
`json_text`), `python_calls`, `typed` (with `invokes`) and `frame`.
"""
