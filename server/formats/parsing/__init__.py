"""Text that comes in pieces becomes pieces of a message: what every format's parser is made of, thoughts included.

===============  ==========================================================================================
``reader``       text that comes in pieces, read by generators that yield where they need more
``turn``         a reader that writes ``pieces`` of a message; begin here
``reading``      what reads a turn of a format: thoughts, content and calls
``reasoning``    thoughts that stand in front
``frame``        turns whose content and thoughts stand in markup of their own, in any order
``answer_tags``  answers in tags of their own, behind the thoughts
===============  ==========================================================================================
"""
