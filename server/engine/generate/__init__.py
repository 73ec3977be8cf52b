"""From logits to events: `sample` takes tokens, checks guesses and makes events, `constrained` holds tokens to a
grammar, `text` shows whole characters and never a part of a stop string.
"""
