"""How much a client's grammar may ask for, and the proof that a grammar is shallow enough to compile.

llguidance compiles rule by rule with native recursion: a chain of about 1,500 rules (`a0: a1`, `a1: a2`, ...) or of
700 `$ref`s overflows a thread's 8 MiB stack and ends the process (measured with llguidance 1.9.1). So the longest
chain is computed here first, without recursion.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import llguidance

from server.errors import InvalidRequest

MAX_TEXT_CHARS = 256 * 1024  # of a GBNF, Lark or regex text
MAX_CALLS_CHARS = 2 * 1024 * 1024  # of a grammar of calls that is written here, with the schemas of all tools
MAX_SCHEMA_NODES = 50_000  # values in a JSON Schema; reading and compiling that many takes half a second
MAX_EXPLAINED_NODES = 10_000  # of an invalid one that is validated against the meta-schema: a second
MAX_PROPERTIES = 3000  # of one object: the time to compile optional ones grows with their square, 1.6 s for so many
MAX_SCHEMA_DEPTH = 64  # nested objects and lists of a JSON Schema
MAX_SCHEMA_CHAIN = 800  # nested levels along the longest chain of $refs
MAX_RULE_CHAIN = 500  # rules and groups along the longest chain of references
MAX_REPETITIONS = 2000  # of `{m,n}` in GBNF, as llama.cpp (src/llama-grammar.cpp, MAX_REPETITION_THRESHOLD)
MAX_GBNF_ITEMS = 20_000  # characters, classes and references in all; compiling that many takes about a second
MAX_MASK_ITEMS = 400_000  # Earley items of one mask, about 4 a microsecond: no mask takes longer than 0.1 s
MASK_FUEL = 1_000_000  # of the lexer for one mask and the tokens up to the next: about 0.1 s
REFILL_S = 0.001  # of a thread's CPU time for tokens, after which a mask gives the lexer new fuel
SLOW_S = 0.01  # of CPU time for a token or a mask: what is above counts
MAX_SLOW_S = 2.0  # of such time in one reply; its lexer grows by about 200 MB a second

PARSER_LIMITS = llguidance.LLParserLimits(
    step_max_items=MAX_MASK_ITEMS,
    max_items_in_row=16_000,  # four for each optional property that may be next
    max_lexer_states=50_000,  # about 100 MB at worst
    step_lexer_fuel=MASK_FUEL,
    verbose_errors=False,  # an error must not quote another part of the request
)


@dataclass(frozen=True, slots=True)
class Node:
    """A rule or a schema that others refer to: nested levels of its own, and the names it uses."""

    weight: int
    uses: tuple[str, ...]


def longest_chain(nodes: Mapping[str, Node], start: Iterable[str]) -> int:
    """The largest sum of weights along a chain of references from `start`; a cycle counts all of its members."""
    component = _components(nodes, start)
    best: dict[int, int] = {}
    # Components are numbered in the order they are completed: what a component uses has a lower number.
    members: dict[int, list[str]] = {}
    for name, number in component.items():
        members.setdefault(number, []).append(name)
    for number in sorted(members):
        below = 0
        for name in members[number]:
            for used in nodes[name].uses:
                if used in component and component[used] != number:
                    below = max(below, best[component[used]])
        best[number] = below + sum(nodes[name].weight for name in members[number])
    return max(best.values(), default=0)


def _components(nodes: Mapping[str, Node], start: Iterable[str]) -> dict[str, int]:
    """Strongly connected components by Tarjan's algorithm, iterative."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: dict[str, int] = {}
    open_names: list[str] = []
    n_components = 0
    for root in start:
        if root in index or root not in nodes:
            continue
        index[root] = low[root] = len(index)
        open_names.append(root)
        work = [(root, iter(nodes[root].uses))]
        while work:
            name, uses = work[-1]
            for used in uses:
                if used not in nodes:
                    continue
                if used not in index:
                    index[used] = low[used] = len(index)
                    open_names.append(used)
                    work.append((used, iter(nodes[used].uses)))
                    break
                if used not in component:
                    low[name] = min(low[name], index[used])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    while True:
                        member = open_names.pop()
                        component[member] = n_components
                        if member == name:
                            break
                    n_components += 1
    return component


def check_chain(nodes: Mapping[str, Node], start: Iterable[str], limit: int, what: str) -> None:
    """Raise InvalidRequest when the longest chain is past `limit`."""
    depth = longest_chain(nodes, start)
    if depth > limit:
        raise InvalidRequest(f"{what} is nested too deeply: {depth} levels of references, {limit} allowed")
