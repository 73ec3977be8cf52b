"""From logits to events: `sample` checks guesses, `output` makes tokens events, `constrained` holds them to a grammar,
`text` shows whole characters and never a part of a stop string.
"""
