"""Simulate the scheduler on a large GPU: `server.engine`'s scheduler, placement and caches over a cost model of time.

Only time and KV cells are simulated. `python -m benchmarks.simulation --help` lists the options.
"""
