"""`server/llama` without a server, compared with the library."""
