"""Text that comes in pieces becomes pieces of a message: what every format's parser is made of, thoughts included.

===============  ==========================================================================================
``reader``       text that comes in pieces, read by generators that yield where they need more
``turn``         a reader that writes ``pieces`` of a message; begin here
``reasoning``    thoughts that stand in front, and the turn of a model without any format
``frame``        content in markup of its own, with thoughts in any order or behind them
===============  ==========================================================================================
"""
