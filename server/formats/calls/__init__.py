"""Incremental parsers of call syntaxes that several families share: `json_calls` (with `json_text`), `python_calls` and
`parameters`.
"""
