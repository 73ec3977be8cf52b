"""What a scheduler is worth on a machine that does not fit here: the engine's own deciders over a cost model of a GPU.

`python -m benchmarks.simulation --help`. Only time and cells are imagined: `server.engine`'s scheduler, placement,
prefix index, RAM cache and step size decide, as they do in the server.
"""
