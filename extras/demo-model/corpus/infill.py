"""Simple Python functions with a hole."""

from random import Random

from .sample import Infill, Split, fresh

_TWO = (("a", "b"), ("x", "y"), ("m", "n"), ("left", "right"), ("first", "second"), ("p", "q"), ("u", "v"))
_MANY = ("numbers", "values", "items", "prices", "scores", "xs", "data", "sizes", "points")
_TEXT = ("text", "word", "name", "line", "s", "title", "message")

# Bodies, and what functions that have them are called.
_BINARY = {
    "{0} + {1}": "add sum_of plus",
    "{0} - {1}": "subtract difference minus",
    "{0} * {1}": "multiply product times",
    "{0} / {1}": "divide quotient ratio",
    "max({0}, {1})": "larger maximum biggest",
    "min({0}, {1})": "smaller minimum least",
    "{0} == {1}": "is_equal same equals",
    "{0} > {1}": "is_greater greater above",
    "{0} < {1}": "is_less less below",
}
_LIST = {
    "sum({0})": "total sum_all add_all",
    "len({0})": "count length size",
    "sum({0}) / len({0})": "mean average avg",
    "max({0})": "highest largest maximum",
    "min({0})": "lowest smallest minimum",
    "sorted({0})": "in_order sort ordered",
    "{0}[0]": "first head get_first",
    "{0}[-1]": "last tail get_last",
    "{0}[::-1]": "backwards reverse reversed_copy",
}
_STRING = {
    "{0}.upper()": "upper shout to_upper",
    "{0}.lower()": "lower whisper to_lower",
    "{0}.strip()": "strip trim clean",
    "{0}.split()": "words split_words tokens",
    "len({0})": "length count size",
    "{0}[::-1]": "reverse backwards flip",
    "not {0}": "is_empty empty blank",
    "{0}[0]": "first_letter initial first",
}
_ONE = {
    "{0} * 2": "double twice",
    "{0} * {0}": "square squared",
    "{0} % 2 == 0": "is_even even",
    "{0} % 2 == 1": "is_odd odd",
    "{0} / 2": "half halve",
    "{0} + 1": "increment next_number",
    "{0} - 1": "decrement previous",
    "-{0}": "negate opposite",
    "{0} > 0": "is_positive positive",
    "{0} < 0": "is_negative negative",
}


def _function(rng: Random) -> tuple[str, tuple[str, ...], str]:
    kind, names = rng.choice(
        ((_BINARY, _TWO), (_LIST, tuple((n,) for n in _MANY)), (_STRING, tuple((n,) for n in _TEXT)),
         (_ONE, tuple((n,) for n in ("n", "x", "number", "value", "i", "a"))))
    )  # fmt: skip
    body, functions = rng.choice(tuple(kind.items()))
    arguments = rng.choice(names)
    return rng.choice(functions.split()), arguments, body.format(*arguments)


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
