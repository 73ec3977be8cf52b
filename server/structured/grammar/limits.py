"""Limits of a client's grammar.

llguidance compiles rule by rule with native recursion: a chain of about 1,500 rules (`a0: a1`, `a1: a2`, ...) or of
700 `$ref`s overflows a thread's 8 MiB stack (measured with llguidance 1.9.1). So the sandbox compiles with half the
stack that a thread of the server has.
"""

import llguidance

MAX_TEXT_CHARS = 256 * 1024  # of a GBNF, Lark or regex text
MAX_CALLS_CHARS = 2 * 1024 * 1024  # of a generated grammar of calls, with the schemas of all tools
MAX_SCHEMA_NODES = 50_000  # values in a JSON Schema; reading and compiling that many takes half a second
MAX_PROPERTIES = 3000  # of one object: compile time grows with the square of optional ones, 1.6 s for this many
SANDBOX_STACK_BYTES = 4 << 20
MAX_SCHEMA_DEPTH = 64  # nested objects and lists of a JSON Schema
MAX_REPETITIONS = 2000  # of `{m,n}` in GBNF, as llama.cpp (src/llama-grammar.cpp, MAX_REPETITION_THRESHOLD)
MAX_GBNF_ITEMS = 20_000  # characters, classes and references in all; compiling that many takes about a second
MAX_MASK_ITEMS = 400_000  # Earley items of one mask, about 4 a microsecond: no mask takes longer than 0.1 s
MASK_FUEL = 1_000_000  # of the lexer for one mask and the tokens up to the next: about 0.1 s
REFILL_S = 0.001  # CPU time for tokens after which a mask is computed to give the lexer new fuel
SLOW_S = 0.01  # CPU time for a token or a mask; time above it is added up
MAX_SLOW_S = 2.0  # maximum of that sum in one reply, during which the lexer grows by about 200 MB a second

PARSER_LIMITS = llguidance.LLParserLimits(
    step_max_items=MAX_MASK_ITEMS,
    max_items_in_row=16_000,  # four for each optional property that may be next
    max_lexer_states=50_000,  # about 100 MB at worst
    step_lexer_fuel=MASK_FUEL,
    verbose_errors=False,  # an error must not quote another part of the request
)
