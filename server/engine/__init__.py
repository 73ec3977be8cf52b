"""The engine: requests wait in a queue, get a slot, and are prefilled and decoded in batches, step by step.

Reading order: `request` (input and output), `runner_api` (what the engine needs of the native side), `sequence`,
`queue` and `scheduler` (how a batch is built), `placement` (where a prefix comes from), `kv_budget` (what happens when
memory runs short), `kv_store` (cells and moves of states), `loop` (the step thread), `sampling`, `speculate`, `engine`
(several instances). `embedding` is the second engine, for embeddings.
"""
