"""The heart: requests wait, get a slot, are prefilled and decoded together, step by step.

Reading order: `request` (what comes in and goes out), `runner_api` (what the engine needs of the native side),
`sequence`, `schedule` (the pure deciders), `step/loop` (the step thread), `prefix`, `kv`, `generate`, `speculate`,
`engine` and `routing` (several instances). `embedding` is the other engine, for vectors.
"""
