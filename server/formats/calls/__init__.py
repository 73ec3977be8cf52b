"""Incremental parsers for call syntaxes that several families share: `json_calls` (with `json_text`), `python_calls`,
`typed` (one parameter at a time) and `invokes` (elements).
"""
