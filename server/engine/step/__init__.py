"""The step thread of one instance: its loop, messages to and from the event loop, and recovery from faults.

================  ======================================================================================
``loop``          receive, place, plan, decode, sample, post; start here
``mailbox``       messages between threads: events and commands
``requests``      requests from arrival to end
``snapshots``     snapshots of slots for GET /slots and the web UI; collected only while somebody watches
``faults``        recovery from a batch that the library rejects
================  ======================================================================================
"""
