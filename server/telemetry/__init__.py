"""What became of requests, as plain values, for who looks in from outside: the log, metrics, traces. `kv_events` tells
routers what is held."""
