"""The engine: requests wait in a queue, get a slot, and are prefilled and decoded in batches, step by step.

Reading order: `request` (input and output), `runner_api` (what the engine needs of the native side), `sequence`,
`schedule` (pure deciders), `step/loop` (the step thread), `prefix`, `kv`, `generate`, `speculate`, `engine` and
`routing` (several instances). `embedding` is the second engine, for embeddings.
"""
