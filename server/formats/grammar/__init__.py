"""Calls that a model must write, as Lark in llguidance's dialect: `call_grammar` makes it of a `tool_call_syntax`.

`argument_rules` has the rules of arguments, `nested_rules` those in notations that are not JSON; `lark_text` writes
rules.
"""
