"""CPU time of Python in the server: `python -m benchmarks.budget`, its parts, and requests that wait."""
