"""Sandboxed processes for untrusted input: `process` starts them and sends requests, `worker` runs in them.

They render templates, decode media and compile grammars. `memory` kills one when memory is low, and finds the server's
control groups. `seccomp` restricts their system calls.
"""
