"""``llamapool bench``: measure prefix sharing, stalls and contention of any OpenAI-compatible server as a client.

The package does not import the rest of the server. ``benchmarks/`` starts servers and runs these scenarios on them.
`command.py` is the command line, `scenarios.py` defines requests and figures, `client.py` sends requests.
"""
