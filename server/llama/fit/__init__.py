"""What fits: what a model would take of memory (`measure`), what there is (`memory`), what is chosen (`choose`)."""
