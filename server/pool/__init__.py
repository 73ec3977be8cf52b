"""Every configured model and its state: unloaded, loading, ready, sleeping, draining, failed.

`pool.Pool` is the door. `turns` and `policy` decide who gets a place, `load` is a model's way into memory and out of
it, `saved` keeps slots in files.
"""
