"""What the cells of slots hold, and where it goes when a slot is needed by others: RAM, disk, and back.

`cells` is the only place that changes cells other than by decoding. `cost` says what keeping and moving is worth,
`moving` takes states out and brings them back, `ram_cache` and `disk_cache` hold them.
"""
