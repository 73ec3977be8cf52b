"""Converts text chunks to parts of a message: the common base of all formats' parsers, including reasoning.

``reader``: text in chunks, read by generators that yield when they need more. ``stream_parser``: a reader that emits
``pieces`` of a message; start here. ``reasoning``: the tags around reasoning.
"""
