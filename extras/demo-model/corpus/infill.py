"""Simple Python functions with a hole."""

from random import Random

from .sample import Infill, Split, fresh

_TWO = (("a", "b"), ("x", "y"), ("m", "n"), ("left", "right"), ("first", "second"), ("p", "q"), ("u", "v"))
_MANY = ("numbers", "values", "items", "prices", "scores", "xs", "data", "sizes", "points")
_TEXT = ("text", "word", "name", "line", "s", "title", "message")
_BINARY = (
    (("add", "sum_of", "plus"), "{0} + {1}"),
    (("subtract", "difference", "minus"), "{0} - {1}"),
    (("multiply", "product", "times"), "{0} * {1}"),
    (("divide", "quotient", "ratio"), "{0} / {1}"),
    (("larger", "maximum", "biggest"), "max({0}, {1})"),
    (("smaller", "minimum", "least"), "min({0}, {1})"),
    (("is_equal", "same", "equals"), "{0} == {1}"),
    (("is_greater", "greater", "above"), "{0} > {1}"),
    (("is_less", "less", "below"), "{0} < {1}"),
)
_LIST = (
    (("total", "sum_all", "add_all"), "sum({0})"),
    (("count", "length", "size"), "len({0})"),
    (("mean", "average", "avg"), "sum({0}) / len({0})"),
    (("highest", "largest", "maximum"), "max({0})"),
    (("lowest", "smallest", "minimum"), "min({0})"),
    (("in_order", "sort", "ordered"), "sorted({0})"),
    (("first", "head", "get_first"), "{0}[0]"),
    (("last", "tail", "get_last"), "{0}[-1]"),
    (("backwards", "reverse", "reversed_copy"), "{0}[::-1]"),
)
_STRING = (
    (("upper", "shout", "to_upper"), "{0}.upper()"),
    (("lower", "whisper", "to_lower"), "{0}.lower()"),
    (("strip", "trim", "clean"), "{0}.strip()"),
    (("words", "split_words", "tokens"), "{0}.split()"),
    (("length", "count", "size"), "len({0})"),
    (("reverse", "backwards", "flip"), "{0}[::-1]"),
    (("is_empty", "empty", "blank"), "not {0}"),
    (("first_letter", "initial", "first"), "{0}[0]"),
)
_ONE = (
    (("double", "twice"), "{0} * 2"),
    (("square", "squared"), "{0} * {0}"),
    (("is_even", "even"), "{0} % 2 == 0"),
    (("is_odd", "odd"), "{0} % 2 == 1"),
    (("half", "halve"), "{0} / 2"),
    (("increment", "next_number"), "{0} + 1"),
    (("decrement", "previous"), "{0} - 1"),
    (("negate", "opposite"), "-{0}"),
    (("is_positive", "positive"), "{0} > 0"),
    (("is_negative", "negative"), "{0} < 0"),
)


def _function(rng: Random) -> tuple[str, tuple[str, ...], str]:
    kind, names = rng.choice(
        ((_BINARY, _TWO), (_LIST, tuple((n,) for n in _MANY)), (_STRING, tuple((n,) for n in _TEXT)),
         (_ONE, tuple((n,) for n in ("n", "x", "number", "value", "i", "a"))))
    )  # fmt: skip
    functions, body = rng.choice(kind)
    arguments = rng.choice(names)
    return rng.choice(functions), arguments, body.format(*arguments)


def infill(rng: Random, split: Split) -> Infill:
    """A function with its body, a part of it, or a loop's inside missing."""
    name, arguments, body = fresh(rng, split, _function)
    head = f"def {name}({', '.join(arguments)}):\n"
    tail = rng.choice(("", "\n", f"\n\nprint({name}({', '.join('123'[: len(arguments)])}))\n"))
    kind = rng.random()
    if kind < 0.5:
        return Infill(head + "    return ", tail or "\n", body)
    if kind < 0.75:
        return Infill(head, tail or "\n", f"    return {body}")
    if kind < 0.9:
        return Infill(head + "    result = ", "\n    return result\n", body)
    return Infill(f"def {name}(", f"):\n    return {body}\n", ", ".join(arguments))
