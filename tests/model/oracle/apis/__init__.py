"""Each API compared with llama-server: replies, streams, errors, token counts."""
