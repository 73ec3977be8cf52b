"""Native contexts: those that generate (`runner`), draft and embed; their batches and sequences."""
