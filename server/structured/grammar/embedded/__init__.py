"""A client's Lark grammar or regex inside a larger grammar, as OpenAI's custom tools have it.

`text_grammar` is the door, `lark_tree` a grammar as a tree, `json_escapes` a regex of texts as one of what stands in a
JSON string.
"""
