"""Texts to vectors: inputs of all requests share decodes, and a request's turn does not depend on its length.

==============  =============================================================
``vectors``     what goes in and comes out, and what is needed of a runner
``instance``    one native context and its step thread; the queue that it shares, which says what a decode carries
``engine``      several instances behind one door
==============  =============================================================
"""
