"""Speculative decoding: several tokens of a sequence are guessed, and checked in one decode beside everybody's own.

Begin with `speculation.py`. A guess changes nothing but time: a token is taken only when sampling gives it anyway.
Where guesses come from: `lookup.py` (the text so far), `drafting.py` and `draft_cells.py` (a small model). How many
of them pay: `chances.py` (how often such guesses were right), `cost.py` (what a larger step costs), `choice.py`;
`credit.py` bounds what they may lose.
"""
