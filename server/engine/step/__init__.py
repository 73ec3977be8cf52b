"""The step thread of one instance: its loop, what crosses to and from the event loop, and what follows a fault.

`loop` first; `requests` follows a request from arrival to end, `mailbox` and the `ModelQueue` are what both threads
touch.
"""
