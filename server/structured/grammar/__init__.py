"""Constraints on the output: JSON Schema, GBNF, Lark, regex and choice, all checked by llguidance.

Every grammar is a client's. One that is wrong or too large is an `InvalidRequest`.

============================  ================================================================================
``compiler``, ``matcher``     a grammar to a constraint, one compiler per model; what the engine steps
``tokenizer``                 the vocabulary for llguidance
``sandbox``, ``attempt``      grammars compiled in another process first; for as long as their client waits
``build``                     what the server and its sandbox both do with a grammar
``limits``, ``panics``        how much a grammar may ask for; the Rust library's panics as our errors
``json_schema``, ``schema/``  a client's schema: is it one, how llguidance is asked for it
``unique/``                   ``uniqueItems``, which no grammar can say
``gbnf``, ``gbnf_lark``       GBNF to a tree, and that to Lark
``lark``                      a client's Lark as the whole grammar
``embedded/``                 a client's Lark or regex as rules of a larger grammar
``triggered``, ``markers``    free text in which markers begin what a grammar describes
``lazy_grammar``              a grammar that holds from a trigger on: llama-server's lazy ones
============================  ================================================================================
"""
