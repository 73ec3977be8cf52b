"""Prompts as they are: OpenAI's completions, and llama-server's own."""
