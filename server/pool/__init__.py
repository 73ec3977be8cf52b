"""All configured models and their states: unloaded, loading, ready, sleeping, draining, failed. `pool.Pool` is the
entry point. `policy` decides which model is loaded, `scheduler` loads and frees models, `admission` counts their
memory, `saved` stores slots in files.
"""
