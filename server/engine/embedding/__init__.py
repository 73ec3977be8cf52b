"""Texts to vectors: `engine` has the queue, the threads and the door; inputs of all requests share decodes. `vectors`
says what goes in and comes out, and what is needed of a runner.
"""
