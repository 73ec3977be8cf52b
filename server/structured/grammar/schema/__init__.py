"""A client's JSON Schema in other words: every draft as one, all references local, all keywords that llguidance has.

`document` reads, `rewriting` (with `negation` and `language`) rewrites. Each says what it cannot keep, and where.
"""
