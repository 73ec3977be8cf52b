"""Texts to vectors: inputs of all requests share decodes, and a request's turn does not depend on its length.

==============  =============================================================
``vectors``     what goes in and comes out, and what is needed of a runner
``queue``       which inputs the next decode carries (pure)
``instance``    one native context and its step thread
``engine``      several instances behind one door
==============  =============================================================
"""
