"""`docs/compatibility.md` as a test: every endpoint and request option, sent to Llamapool and to the real llama-server.

`rows` says what is sent and which differences are on purpose, `compare` sends it, `page` writes what came out:
``python -m tests.model.oracle.compatibility`` renews the page, `test_oracle_compatibility` fails when it is stale.
"""
