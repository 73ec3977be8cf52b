"""Pictures and sounds beside llama-server."""
