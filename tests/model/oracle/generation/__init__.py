"""What comes out beside llama-server: tokens, thoughts and grammars, caches, adapters, guesses."""
