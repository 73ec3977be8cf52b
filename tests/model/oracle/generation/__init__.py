"""Generation compared with llama-server: tokens, reasoning, grammars, caches, adapters, drafts."""
