"""Text that comes in pieces becomes pieces of a message: what every format's parser is made of, thoughts included.

`reader` yields where it needs more, `turn` is the reader that writes `pieces`; begin with `turn`.
"""
