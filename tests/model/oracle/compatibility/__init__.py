"""`docs/compatibility.md` as a test: every endpoint and request option, sent to Llamapool and to the real llama-server.

`rows` has the requests and the intended differences, `compare` sends them, `page` formats the results.
``python -m tests.model.oracle.compatibility`` writes the page; `test_oracle_compatibility` fails if it is stale.
"""
