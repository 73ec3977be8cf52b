"""Durable state of the API: stored responses, conversations, files and batches, in one SQLite file.

`Database` owns the connection and its thread. `Objects` stores JSON objects, their items and large values for each
owner. `BatchObjects` stores also what became of a batch's requests. Every public method is a coroutine, and no
statement runs on the event loop. Nothing here knows HTTP.
"""
