"""What the cells of slots hold, and where it goes when a slot is needed by others: RAM, disk, and back.

================  ======================================================================================
``cells``         the only place that changes cells other than by decoding
``state``         what a slot holds as a value; places to come back to where memory can't be cut (pure)
``ram_cache``     prompt states that have lost their slot, in RAM (pure)
``disk_cache``    and on disk; requests that wait for the disk
``moving``        states out of the cells and back, and whether that may be now
``cost``          what a cache is worth, whose goes first, what moving a state or a stream takes (pure)
================  ======================================================================================
"""
