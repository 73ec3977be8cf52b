"""The engine: requests wait in a queue, get a slot, and are prefilled and decoded in batches, step by step.

Read first `request` (input and output), `runner_api` (the interface of the native side) and `sequence`. Then three
questions: `queue` and `scheduler` (how a batch is built), `placement` (what the source of a prefix is),
`cache.kv_budget` (what happens when memory runs short). `kv_store` moves states, `loop` is the step thread, and
`engine` has several instances. `embedding` is the second engine, for embeddings.
"""
