"""Speculative decoding: several tokens of a sequence are guessed, and checked in one decode beside everybody's own.

Begin with `speculation.py`. A guess changes nothing but time: a token is taken only when sampling gives it anyway.
Where guesses come from: `lookup.py` (the text so far), `draft_model.py` (a small model, or the model's own heads). How
many of them pay: `cost.py`.
"""
