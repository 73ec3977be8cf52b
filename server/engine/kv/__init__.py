"""The KV store: what the cells of slots hold, and where it goes when a slot is needed: RAM, disk, and back.

================  ======================================================================================
``cells``         the only code that changes cells other than by decoding
``state``         a slot's contents as a value; checkpoints for memory that cannot be truncated (pure)
``ram_cache``     the RAM tier: states of sequences that lost their slot (pure)
``disk_cache``    the disk tier, and requests that wait for a read
``offloader``     moves states out of cells and back, within the step's time
``cost``          eviction priority, and the predicted cost of moving a state or copying a sequence (pure)
================  ======================================================================================
"""
