"""Speculative decoding: draft tokens are proposed and verified in one decode, together with the other sequences'
tokens.

Start with `speculation.py`. A draft changes nothing but speed: a token is accepted only if sampling produces it.
Sources of drafts: `lookup.py` (n-grams of the text), `draft_model.py` (a draft model or MTP heads). How many draft
tokens pay: `cost.py`.
"""
