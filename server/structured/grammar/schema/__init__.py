"""Normalizes a client's JSON Schema: one draft, local references, and only keywords that llguidance supports.

`document` parses, `rewriting` (with `negation` and `language`) rewrites. Errors name the path of a keyword that can't
be expressed.
"""
