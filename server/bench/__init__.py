"""``llamapool bench``: waiting times and rates of any OpenAI-compatible server, as its clients see them.

The package stands by itself: it imports nothing of the server's inside, so what it measures of Llamapool it measures of
llama-server, Ollama or vLLM in the same way. ``benchmarks/`` starts servers and runs these scenarios on them in turn.

| file | what it holds |
|---|---|
| `command.py` | the command line; figures as a table and as JSON |
| `scenarios.py` | what each scenario sends, and which figures it gives |
| `prompts.py` | texts and request bodies |
| `session.py` | requests in flight: streams, kept connections |
| `connection.py`, `target.py` | HTTP/1.1 with one timestamp per arrival; the address |
| `reply.py` | bytes and their times to a `ClientRecord`, after the end |
| `figures.py` | records to figures |
"""
