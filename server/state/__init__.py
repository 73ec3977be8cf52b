"""Durable state of the API: stored responses, conversations, files and batches, in an SQLite file or in Redis.

`Database` owns the SQLite connection and its thread. `Objects` stores JSON objects of owners with their items and large
values. `BatchObjects` also stores the requests of batches and their results. Public methods are coroutines, and no
statement runs on the event loop. The package is independent of HTTP.
"""
