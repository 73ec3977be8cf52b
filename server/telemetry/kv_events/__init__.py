"""Publishes KV cache events to routers in vLLM's format.

`publisher` implements the wire format (ZMQ, msgpack), `follow` reads the models' caches. Needs the extra
``llamapool[events]``; without the option ``kv_events`` nothing is imported or read.
"""
