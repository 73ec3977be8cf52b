"""Tool calls: the right tool of up to four, none, two at once, and the answer from a result."""

import json
from dataclasses import dataclass, replace
from random import Random

from . import words
from .chitchat import small_talk
from .facts import fact
from .sample import Call, Sample, Split, Turn, fresh, phrase
from .toolkinds import KINDS, Kind, Values, made_up_kind

JOINS = (
    " Also: ",
    " And: ",
    " Then: ",
    " ",
    " And also: ",
    " Then ",
    " And then: ",
    " After that: ",
    " Next: ",
    " Plus: ",
)
_AND = (" and ", ", and ", " and then ", ", then ", " and also ")
NO_TOOL = "I am sorry, I have no tool for that."
_SUMS = ("calculate", "add_numbers")


@dataclass(frozen=True)
class Offer:
    """A tool as offered: its kind, name, parameter names (of the kind's order), and JSON."""

    kind: Kind
    name: str
    parameters: tuple[str, ...]
    described: dict[str, object]

    def call(self, values: Values) -> Call:
        """The call with these arguments, in the order in which the tool lists its parameters."""
        arguments = dict(zip(self.parameters, values, strict=True))
        function: dict = self.described["function"]  # type: ignore[assignment, type-arg]
        return Call(
            self.name, {name: arguments[name] for name in function["parameters"]["properties"] if name in arguments}
        )


def _tool_name(rng: Random, kind: Kind) -> str:
    """One of the kind's names, one made from it, or a word that means nothing: so a name can only be copied."""
    name = rng.choice(kind.names)
    style = 0.0 if kind.more else rng.random()
    if style < 0.5:
        return name
    if style < 0.58:
        first, *rest = name.split("_")
        return first + "".join(word.capitalize() for word in rest)
    if style < 0.7:
        return name + rng.choice(("_v2", "_tool", "_now", "_api", "2", "_for_me", "_" + words.made_up(rng, 1).lower()))
    if style < 0.82:
        return rng.choice(("my_", "do_", "run_", "fetch_", "new_", words.made_up(rng, 1).lower() + "_")) + name
    return words.made_up(rng).lower() + rng.choice(("", "", "_" + words.made_up(rng, 1).lower()))


def _parameter_name(rng: Random, names: tuple[str, ...], fixed: bool) -> tuple[str, str]:
    """A parameter's name, and its description or nothing. A name that means nothing is always described."""
    name, style = rng.choice(names), 0.0 if fixed else rng.random()
    about = f"The {rng.choice(names)}" if rng.random() < 0.25 else ""
    if style < 0.65:
        return name, about
    if style < 0.82:
        form = rng.choice(("{0}_name", "{0}_value", "the_{0}", "my_{0}", "{0}_1", "in_{0}", "{0}Text"))
        return form.format(name), about
    return words.made_up(rng, rng.choice((1, 2))).lower(), about or f"The {rng.choice(names)}"


def offer(rng: Random, kind: Kind) -> Offer:
    """The tool under one of its names."""
    name = _tool_name(rng, kind)
    named = [_parameter_name(rng, names, bool(kind.more)) for names, _ in kind.parameters]
    parameters = tuple(parameter for parameter, _ in named)
    if len(set(parameters)) < len(parameters):
        return offer(rng, kind)
    ordered = rng.random() < 0.6

    def arranged(mapping: dict[str, object]) -> dict[str, object]:
        return mapping if ordered else {key: mapping[key] for key in sorted(mapping)}

    properties: dict[str, object] = {}
    for (parameter, about), (_, type_) in zip(named, kind.parameters, strict=True):
        properties[parameter] = arranged({"type": type_, "description": about}) if about else {"type": type_}
    schema: dict[str, object] = {"type": "object", "properties": arranged(properties)}
    if rng.random() < 0.8:
        schema["required"] = list(parameters)
    function: dict[str, object] = {"name": name}
    if name not in kind.names or kind.more or rng.random() < 0.8:
        function["description"] = rng.choice(kind.about)
    function["parameters"] = arranged(schema)
    return Offer(kind, name, parameters, arranged({"type": "function", "function": arranged(function)}))


def calculates(kind: Kind) -> bool:
    """Whether the tool does sums."""
    return kind.names[0] in _SUMS


def kinds_of(rng: Random, n: int) -> list[Kind]:
    """Kinds of which only one calculates, at times one among them that nobody has heard of."""
    while True:
        kinds = rng.sample(KINDS, n)
        if sum(map(calculates, kinds)) < 2:
            break
    if rng.random() < 0.25:
        kinds[rng.choice((0, n - 1))] = made_up_kind(rng)
    return kinds


def offers_of(rng: Random, kinds: list[Kind]) -> list[Offer]:
    """Offers of these kinds, their names distinct."""
    while True:
        offers = [offer(rng, kind) for kind in kinds]
        if len({o.name for o in offers}) == len(offers):
            return offers


def asked(rng: Random, split: Split, kind: Kind) -> tuple[str, Values]:
    """The user's words for a tool, and the arguments in them."""
    values = fresh(rng, split, kind.draw)
    more = dict(zip(("noun", "tool", "parameter"), kind.more, strict=False))
    question = phrase(rng, split, kind.asks).format(*values, **more)
    return question[0].upper() + question[1:], values


def both(rng: Random, one: str, two: str) -> str:
    """Two requests as one message: as sentences, or within one."""
    if rng.random() < 0.7 or ". " in one:
        return one + rng.choice(JOINS) + two
    lower = two if two.startswith(("I ", "I'", "Don't")) else two[0].lower() + two[1:]
    return one.rstrip(".?") + rng.choice(_AND) + lower


def _finished(
    ability: str, turns: list[Turn], offers: list[Offer], accept: list[str], reject: tuple[str, ...] = ()
) -> Sample:
    return Sample(ability, tuple(turns), tuple(accept), reject, tuple(o.described for o in offers))


def one_call(rng: Random, split: Split) -> Sample:
    """The one tool that fits, of up to four; in a third of the samples its result is answered from."""
    offers = offers_of(rng, kinds_of(rng, rng.choice((1, 1, 2, 2, 3, 4))))
    chosen = offers[0]
    question, values = asked(rng, split, chosen.kind)
    rng.shuffle(offers)
    thought = f"The tool {chosen.name} fits."
    call = Turn("assistant", calls=(chosen.call(values),), thought=thought)
    turns = [Turn("user", question), call]
    if rng.random() < 0.6:
        return _finished("tool call", turns, offers, [])
    result, answer = chosen.kind.result(rng, values)
    shown = json.dumps(result, ensure_ascii=False)
    final = Turn("assistant", answer, thought="The tool gave me the answer.")
    turns += [Turn("tool", shown), final]
    keys = [rf"(?<!\w){value}\b" for value in result.values() if value not in ("ok", "done", "success")]
    return _finished("tool result", turns, offers, keys or [answer.split()[-1].rstrip(".")], ("<tool_call>",))


def two_calls(rng: Random, split: Split) -> Sample:
    """Two calls at once: of one tool, or of two."""
    offers = offers_of(rng, kinds_of(rng, rng.choice((1, 2, 2, 3))))
    if len(offers) == 1:
        first = second = offers[0]
    else:
        first, second = offers[:2]
    (one, values), (two, others) = asked(rng, split, first.kind), asked(rng, split, second.kind)
    rng.shuffle(offers)
    same = first is second and len(values) == 1 and values != others and str(values[0]) in one
    if same and rng.random() < 0.7:
        question = one.replace(str(values[0]), f"{values[0]} and {others[0]}", 1)
    else:
        question = both(rng, one, two)
    thought = f"I need two calls: {first.name} and {second.name}."
    calls = (first.call(values), second.call(others))
    turns = [Turn("user", question), Turn("assistant", calls=calls, thought=thought)]
    if rng.random() < 0.7:
        return _finished("parallel calls", turns, offers, [])
    (r1, a1), (r2, a2) = first.kind.result(rng, values), second.kind.result(rng, others)
    turns += [Turn("tool", json.dumps(r)) for r in (r1, r2)]
    turns.append(Turn("assistant", f"{a1} {a2}", thought="The tools gave me the answers."))
    keys = [rf"(?<!\w){v}\b" for r in (r1, r2) for v in r.values() if v not in ("ok", "done", "success")]
    return _finished("tool result", turns, offers, keys or [a2.split()[-1].rstrip(".")], ("<tool_call>",))


def no_call(rng: Random, split: Split) -> Sample:
    """Tools are offered, but none fits: an ordinary answer, or the lack of a tool is said."""
    kinds = kinds_of(rng, rng.choice((2, 2, 3, 4, 5)))
    offers = offers_of(rng, kinds[1:])
    described = tuple(o.described for o in offers)
    if rng.random() < 0.4:
        while True:
            sample = rng.choice((fact, small_talk))(rng, split)
            sums = any(calculates(o.kind) for o in offers)
            if not (sums and has_digit(sample)):
                break
        thought = f"No tool is needed. {sample.turns[-1].thought}"
        turns = (sample.turns[0], replace(sample.turns[-1], thought=thought))
        return replace(sample, ability="no tool", turns=turns, tools=described, reject=("<tool_call>",))
    question, _ = asked(rng, split, kinds[0])
    turns = (Turn("user", question), Turn("assistant", NO_TOOL, thought="No tool fits."))
    return Sample("no tool", turns, ("no tool",), ("<tool_call>",), described)


def has_digit(sample: Sample) -> bool:
    """Whether the question has a digit, so that a calculator might fit it."""
    return any(c.isdigit() for c in sample.turns[0].text)


def tool_use(rng: Random, split: Split) -> Sample:
    """Any use of tools."""
    return rng.choices((one_call, two_calls, no_call), (5, 2.5, 3.5))[0](rng, split)
