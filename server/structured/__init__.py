"""Constrains the output to a format: grammars (`grammar`, based on llguidance) and reasoning before them.

`response_format` is the format that a request specifies, `lazy` a grammar with a trigger, `constraint` the engine's
interface. `after_reasoning` starts a constraint after the reasoning, `reasoning_end` ends reasoning early. Both wrap
any other constraint and work token by token.
"""
