"""Results of requests as plain values for logs, metrics and traces; `kv_events` publishes cached blocks to routers."""
