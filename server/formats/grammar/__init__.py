"""Calls that a model must write, as Lark in llguidance's dialect: `call_grammar` makes it of a `call_form`."""
