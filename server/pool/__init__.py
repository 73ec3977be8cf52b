"""All configured models and their states: unloaded, loading, ready, sleeping, draining, failed. `pool.Pool` is the
entry point. `load_queue` and `policy` decide which model is loaded, `load` loads and frees models, `saved` stores
slots in files.
"""
