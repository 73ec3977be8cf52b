"""All configured models and their states: unloaded, downloading, loading, ready, draining, sleeping, failed.

`pool.Pool` is the entry point. `policy` decides which models are loaded, `scheduler` loads and frees them, and
`admission` counts their memory. `saved` stores slots in files, and `worker` runs models in processes.
"""
