"""llama-server's built-in tools (``--tools``; llama.cpp tools/server/server-tools.cpp): files and commands of this
machine for the web UI's model.

Off by default. `catalogue` defines the tools. `work` runs them in a process that `child` starts, so that an endless
regular expression or a huge file costs only that process.
"""
