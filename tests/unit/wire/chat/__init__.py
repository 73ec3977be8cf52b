"""OpenAI's chat."""
