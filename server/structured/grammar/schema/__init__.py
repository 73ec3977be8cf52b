"""Normalizes a client's JSON Schema: one draft, local references, and only keywords that llguidance supports.

`document` parses, `rewriting` (with `negation` and `language`) rewrites. Each reports what it can't express, with
its position.
"""
