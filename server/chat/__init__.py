"""What is said between a client and a model, whatever wire format it comes in.

`conversation` says what one is. `prepare` is its way to the engine: `prompt`, then
`output` (what may come), with `triggered_calls` and `thoughts` as constraints of their own. `assembler` is the way
back.
"""
