"""What each API says beside llama-server: replies, streams, errors, counts."""
