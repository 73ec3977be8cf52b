"""The step thread of one instance: its loop, what crosses to and from the event loop, and what follows a fault.

================  ======================================================================================
``loop``          receive, place, plan, decode, sample, post; begin here
``mailbox``       what crosses between threads: events, commands
``requests``      requests from arrival to end
``published``     what slots do, for GET /slots; what is told to who looks, of caches too, and nothing while nobody does
``faults``        what follows a batch that the library refuses
================  ======================================================================================
"""
