"""A client's Lark grammar or regex inside a larger grammar, for OpenAI's custom tools.

`text_grammar` is the interface, `lark_tree` parses a grammar, `json_escapes` converts a regex of texts to a regex of
their JSON string form.
"""
