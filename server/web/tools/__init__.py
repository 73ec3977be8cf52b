"""llama-server's built-in tools (``--tools``; llama.cpp tools/server/server-tools.cpp): files and commands of this
machine for the model that a person talks to on the page. Off unless asked for.

`catalogue` says what there is, `work` and what it imports does it, in a process of its own that `child` starts: an
expression that never ends, or a file that is too large, costs that process.
"""
