"""``llamapool bench``: prefix sharing, stalls and contention of any OpenAI-compatible server, as its clients see them.

The package imports nothing of the server. ``benchmarks/`` starts servers and runs these scenarios on them in turn.
`command.py` is the command line, `scenarios.py` says what is sent and measured, `client.py` sends it.
"""
