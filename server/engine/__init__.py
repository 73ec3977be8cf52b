"""The heart: requests wait, get a slot, are prefilled and decoded together, step by step.

Reading order: `request` (what comes in and goes out), `protocols` (what the engine needs of the native side),
`sequence`, `prefix`, `pace`, `placement`, `scheduler` (the pure deciders), `instance` (the step thread), `engine`
(several instances). `embedding` is the other engine, for vectors.
"""
