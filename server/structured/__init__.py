"""What holds the output to a shape: grammars (`grammar`, by llguidance), and thoughts around them.

`shape` is what a request asks for, `lazy` a grammar that waits for a trigger, `constraint` what the engine steps.
`after_thinking` begins a constraint behind the thoughts, `thinking_end` ends thoughts early. Both go token by token, so
that any grammar may stand inside.
"""
