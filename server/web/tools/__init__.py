"""llama-server's built-in tools (``--tools``; llama.cpp tools/server/server-tools.cpp): files and commands of this
machine for models in the web UI.

Off by default. `catalogue` lists and calls the tools. `work` runs in its own process, so that an endless regular
expression or a huge file costs only that process.
"""
