"""Which prompts' beginnings this server holds, told to routers in front as vLLM tells it: `publisher` has the wire
(ZMQ, msgpack), `follow` asks the models. Of the extra ``llamapool[events]``; without ``kv_events`` nothing is imported
or asked."""
