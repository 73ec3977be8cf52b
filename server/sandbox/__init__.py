"""Processes for untrusted input that the server can stop: `process` sends requests, `worker` runs in the child.

They render templates, decode media and compile grammars. `memory` kills one when memory is low, and
finds the server's control groups.
"""
