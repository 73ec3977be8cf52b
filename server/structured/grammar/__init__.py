"""Constraints on the output: JSON Schema, GBNF, Lark, regex and choice, all checked by llguidance.

Grammars come from clients. An invalid or too large one raises `InvalidRequest`.

============================  =======================================================================
``compiler``, ``matcher``     compile a grammar to a constraint, one compiler per model
``tokenizer``                 the vocabulary for llguidance
``sandbox``, ``attempt``      compile grammars in another process first, while their client waits
``build``                     the part of compiling that the server and its sandbox share
``limits``                    limits of a grammar
``json_schema``, ``schema/``  validate a client's schema and rewrite it for llguidance
``unique_items``              ``uniqueItems``, which no grammar can express
``gbnf``, ``lark``            convert GBNF to Lark; check a client's Lark
``embedded_text``             a client's grammar for a text inside the grammar of a call
``triggered``                 free text in which markers start constrained parts; lazy grammars
``text_tokens``               indexes of tokens by their text
============================  =======================================================================
"""
