"""Grammars of calls, as Lark in llguidance's dialect: `call_grammar` creates them from a `tool_call_syntax`.

`argument_rules` has the rules of arguments; `lark_text` writes rules.
"""
