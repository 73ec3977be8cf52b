"""Who gets a slot, and who decodes which tokens in the next step. Pure: no threads, clock or native calls.

`model_queue` holds what no instance has taken; `scheduler` is an instance's door: `queue` says who is next there,
`cell_room` who passes whom where cells are short, `prefill_order` which prompt comes first, `step_size` how many tokens
a step carries; `admission` who may join a full queue.
"""
