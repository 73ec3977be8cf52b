"""Conversations over tools of any kind: one call, two, none that fits, what a tool's error was. Its calls are scored.

The tools are described as people's programs describe them: in many wordings, with examples, choices and parameters that
may be left out. What `models/asked.jsonl` and `asked-more.jsonl` ask is left out.
"""

import json
import re
from functools import cache
from pathlib import Path
from random import Random

from . import words
from .anykinds import ANY_KINDS, verb_kinds
from .chitchat import small_talk
from .dailykinds import DAILY_KINDS
from .facts import fact
from .sample import Call, Sample, Split, Turn, fresh, phrase, plain
from .toolkinds import KINDS, Kind, Schema, Values, made_up_kind
from .tools import NO_TOOL, Offer, calculates, has_digit
from .tooltalk import answered
from .values import Spoken, code_of, sentence, stem, term, title, written

# Neighbours are of one sort: files beside files, calendars beside mail.
EVERY_KIND = ANY_KINDS + DAILY_KINDS
_MODELS = Path(__file__).resolve().parents[3] / "models"
_ASKED_FILES = ("asked.jsonl", "asked-more.jsonl")


@cache
def _asked_prompts() -> frozenset[str]:
    """What the published prompts say, without case and punctuation."""
    cases = [json.loads(line) for name in _ASKED_FILES for line in (_MODELS / name).read_text().splitlines()]
    return frozenset(plain(message["content"] or "") for case in cases for message in case["messages"])


# Descriptions


def _third_person(about: str) -> str:
    """`Read a file` as `Reads a file`."""
    first, _, rest = about.partition(" ")
    ends = "es" if first.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{first}{ends} {rest}"


_IMPERATIVES = frozenset(
    words.words_of(
        "Get Send Set Start Calculate Evaluate Add Search Translate Play Turn Switch Find Book Create Remind Convert "
        "Look Roll Read Return Show Open List Write Save Store Append Move Rename Copy Delete Remove Make Run Execute "
        "Ping Check Kill End Restart Stop Take Query Measure Lock Control Change Dim Arm Preheat Pause Schedule Plan "
        "Cancel Post Mark Describe Count Fetch Download Define Draw Pick Generate Hash Tell Give Commit Track Order "
        "Multiply Print Archive Assign Share Enable "
        "Rent Call Log Rate Connect Close Water Feed Activate Deploy Roll Scale Merge Ask Pull Install Pack Unpack "
        "Back Format Block Reply Forward Publish Invite Reverse Detect Shorten Compute Sort Raise Flip Redeem Borrow "
        "Resize Split Transfer Hire Locate Silence"
    )
)


def _about(rng: Random, kind: Kind) -> str:
    """One of the kind's descriptions, in the manner of one program or another."""
    about = rng.choice(kind.about)
    if about.split()[0] in _IMPERATIVES:
        lower = about[0].lower() + about[1:]
        forms = (
            "{0}", "{0}", "{0}", "{1}", "{1}", "Use this to {2}", "Use this tool to {2}", "Tool to {2}",
            "Lets you {2}", "Call this when the user wants to {2}", "A tool that {3}", "This function {3}",
            "Helps to {2}",
        )  # fmt: skip
        third = _third_person(about)
        about = rng.choice(forms).format(about, third, lower, third[0].lower() + third[1:])
    if rng.random() < 0.35:
        about += "."
        if rng.random() < 0.35:
            about += rng.choice((
                " Returns JSON.", " Use it whenever asked.", " Fast and free.", " Fails if it can't.",
                " Only for this account.", " Requires permission.", " Version 2.", " Returns the result.",
                " Do not guess arguments.", " Ask the user when in doubt.", " Takes a while.", " The result is text.",
                " Only works when logged in.", " Call it once for each request.", " Beta.", " Needs no confirmation.",
            ))  # fmt: skip
    return about


def _parameter_about(rng: Random, names: tuple[str, ...], example: object) -> str:
    """What a parameter is, at times by an example, which is never what the user means."""
    said = rng.choice(names).replace("_", " ")
    form = rng.choice((
        "The {0}", "The {0}", "{1}", "{1}", "Which {0}", "{1} to use", "The {0} to use", "Name of the {0}",
        "{1} as text", "What {0}", "{1}, e.g. {2}", "The {0}, for example {2}", "{1} (like {2})", "e.g. {2}",
        "{1} (required)", "The {0} that is meant", "The {0} as the user says it", "Required. The {0}", "A {0}",
    ))  # fmt: skip
    shown = ", ".join(map(str, example)) if isinstance(example, list) else example
    return form.format(said, said.capitalize(), shown)


_OPTIONAL: tuple[tuple[str, dict[str, object]], ...] = (
    ("limit", {"type": "integer", "description": "Maximum number of results"}),
    ("verbose", {"type": "boolean"}),
    ("format", {"type": "string", "enum": ["json", "text"]}),
    ("timeout", {"type": "integer", "description": "Seconds to wait"}),
    ("encoding", {"type": "string", "default": "utf-8"}),
    ("force", {"type": "boolean", "default": False}),
    ("page", {"type": "integer", "description": "Page of the results"}),
    ("lang", {"type": "string", "description": "Language, optional"}),
    ("dry_run", {"type": "boolean", "description": "Only show what would be done"}),
    ("options", {"type": "object"}),
    ("priority", {"type": "string", "enum": ["low", "normal", "high"], "default": "normal"}),
    ("sort", {"type": "string", "description": "How to sort, optional"}),
    ("notify", {"type": "boolean", "description": "Whether to tell the user"}),
    ("max_results", {"type": "integer", "default": 10}),
    ("recursive", {"type": "boolean", "default": False}),
    ("comment", {"type": "string", "description": "Only if the user gives one"}),
)
_ROOT_NAMES = ("tool", "function", "action", "do_it", "call_me", "helper_1", "op", "execute_it")


def _name(rng: Random, kind: Kind) -> str:
    name, style = rng.choice(kind.names), rng.random()
    if style < 0.6:
        return name
    if style < 0.68:
        first, *rest = name.split("_")
        return first + "".join(word.capitalize() for word in rest)
    if style < 0.73:
        return name.replace("_", "-")
    if style < 0.82:
        return name + rng.choice(("_v2", "_tool", "_now", "_api", "2", "_" + stem(rng)))
    if style < 0.92:
        return (
            rng.choice(("my_", "do_", "fs_", "home_", "api_", "mcp_", "app.", stem(rng) + "_", stem(rng) + ".")) + name
        )
    return words.made_up(rng).lower() if rng.random() < 0.75 else rng.choice(_ROOT_NAMES)


def _property(rng: Random, kind: Kind, i: int, must_say: bool) -> tuple[str, dict[str, object]]:
    """A parameter's name and schema."""
    names, schema = kind.parameters[i]
    name, style = rng.choice(names), rng.random()
    if style > 0.93:
        name, must_say = rng.choice((words.made_up(rng, 1).lower(), f"arg{i + 1}", f"p{i + 1}")), True
    elif style > 0.88:
        first, *rest = name.split("_")
        name = first + "".join(word.capitalize() for word in rest) if rest else f"the{name.capitalize()}"
    shown = _shape(schema)
    if must_say or rng.random() < 0.45:
        shown["description"] = _parameter_about(rng, names, written(kind.draw(rng)[i]))
    if shown.get("type") in ("integer", "number") and rng.random() < 0.08:
        shown |= rng.choice(({"minimum": 0}, {"minimum": 1}, {"minimum": 0, "maximum": 100000}))
    if rng.random() < 0.05:
        shown["title"] = name.replace("_", " ").title()
    return name, shown


def _shape(schema: Schema) -> dict[str, object]:
    return {"type": schema} if isinstance(schema, str) else dict(schema)


def any_offer(rng: Random, kind: Kind) -> Offer:
    """The tool as some program would offer it."""
    while True:
        name = _name(rng, kind)
        known = name in kind.names
        two = len(kind.parameters) > 1
        made = [_property(rng, kind, i, two and rng.random() < 0.3) for i in range(len(kind.parameters))]
        properties = dict(made)
        if len(properties) == len(made):
            break
    parameters = tuple(properties)
    for _ in range(rng.choice((1, 1, 2)) if rng.random() < 0.2 else 0):
        optional, shape = rng.choice(_OPTIONAL)
        properties.setdefault(optional, shape)
    listed = list(properties.items())
    if rng.random() < 0.25:
        rng.shuffle(listed)
    schema: dict[str, object] = {"type": "object", "properties": dict(listed)}
    if parameters and rng.random() < 0.85:
        schema["required"] = [key for key, _ in listed if key in parameters]
    if rng.random() < 0.08:
        schema["additionalProperties"] = False
    function: dict[str, object] = {"name": name}
    if not known or kind.more or rng.random() < 0.93:
        function["description"] = _about(rng, kind)
    function["parameters"] = schema
    return Offer(kind, name, parameters, {"type": "function", "function": function})


def call_of(offer: Offer, values: Values) -> Call:
    """The call, with the arguments as they are written."""
    return offer.call(tuple(map(written, values)))


# Requests

_BEFORE = (
    "Please {0}", "Can you {0}?", "Could you {0}?", "I want you to {0}", "Hey, {0}", "Hi, can you {0}?",
    "Could you please {0}?", "Would you {0}?", "I need you to {0}", "Now {0}", "Next, {0}", "Quickly {0}",
    "Go and {0}", "ok, {0}", "You should {0}",
)  # fmt: skip
_AFTER = (
    "{0}, please",
    "{0} please",
    "{0}, thanks",
    "{0} for me",
    "{0} now",
    "{0}, will you?",
    "{0}. Thanks!",
    "{0} right away",
)
# Around any request, a question too.
_AROUND = (
    "Hi! {0}", "Hello! {0}", "Hello, {0}", "Hey! {0}", "Good morning! {0}", "{0} Thanks!", "{0} Thank you.",
    "Quick question: {0}", "One more thing: {0}", "Next: {0}", "So, {0}", "Thanks. {0}", "Good. {0}", "And {0}",
    "I am in a hurry. {0}", "I have a question. {0}", "Tell me, {0}", "Well, {0}", "Assistant, {0}",
    "{0} It is urgent.",
)  # fmt: skip
_NO_IMPERATIVE = (
    "I ",
    "I'",
    "We ",
    "The ",
    "On ",
    "What",
    "Which",
    "How",
    "Is ",
    "Are ",
    "Do ",
    "Does ",
    "Let ",
    "Note:",
)


def any_request(rng: Random, split: Split, kind: Kind) -> tuple[str, Values]:
    """The user's words for a tool, and the arguments in them."""
    more = dict(zip(("noun", "tool", "parameter"), kind.more, strict=False))
    while True:
        values = fresh(rng, split, kind.draw) if kind.parameters else ()
        pattern = phrase(rng, split, kind.asks)
        said = pattern.format(*values, **more)
        if plain(said) in _asked_prompts():
            continue
        imperative = pattern.endswith(".") and not pattern.startswith((*_NO_IMPERATIVE, "{")) and ". " not in pattern
        said = _worded(rng, said, imperative)
        if plain(said) not in _asked_prompts():
            return said, values


def _worded(rng: Random, said: str, imperative: bool) -> str:
    """The request in one manner or another: politely, without a capital, without a full stop."""
    style = rng.random()
    if imperative and style < 0.32:
        bare = said.removesuffix(".").removesuffix(", please")
        said = (
            rng.choice(_BEFORE).format(bare[0].lower() + bare[1:]) if style < 0.22 else rng.choice(_AFTER).format(bare)
        )
    elif style > 0.93:
        around = rng.choice(_AROUND)
        follows = around.endswith(", {0}") or around.startswith("And")
        named = said.startswith(("I ", "I'")) or said[:2].upper() == said[:2]
        said = around.format(said[0].lower() + said[1:] if follows and not named else said)
    style = rng.random()
    if style < 0.72:
        said = said[0].upper() + said[1:] if said[0].isalpha() else said
    elif style < 0.9:
        said = said[0].lower() + said[1:] if not said.startswith("I ") else said
    if rng.random() < 0.2:
        said = re.sub(r"[.?]$", "", said)
    return said


_JOINS = (
    ". ", ". Also ", ". And ", ". Then ", ". Also, ", " and ", " and ", " and ", " and then ", ", then ", ", and ",
    " and also ", "; ", ", also ", ". After that ", ". Next, ", " as well as ", ". Oh, and ", ".\n", "\n",
    ", and then ", ", after that ", " plus ",
)  # fmt: skip


def _both(rng: Random, one: str, two: str) -> str:
    """Two requests as one message."""
    join = rng.choice(_JOINS)
    if one[-1] == "?" and join[0] == ".":
        join = "?" + join[1:]
    one = one.rstrip(".?")
    if join in (". ", "? ", ".\n", "\n"):
        two = two if rng.random() < 0.2 else two[0].upper() + two[1:]
    elif not two.startswith(("I ", "I'")) and two[:2].upper() != two[:2]:
        two = two[0].lower() + two[1:]
    return one + join + two


# Kinds that the same words may ask for, by their first names: one of them at a time.
_SAME_WORDS = tuple(
    frozenset(words.words_of(names))
    for names in (
        "search internet_search", "create_reminder remind_me add_task", "set_timer countdown", "play_music start_game",
        "countdown countdown_seconds", "set_timer countdown_seconds", "convert_currency exchange_rate",
        "turn_on_light switch", "heat_of room_temperature", "shopping_list order_product", "calculate power",
        "shopping_list add_to_cart", "order_product add_to_cart", "calculate percentage", "calculate square_root",
        "send_sms post_to_channel", "product_price coin_price get_stock_price", "find_nearby restaurant_search",
        "call_taxi book_flight", "translate detect_language", "install_app open_app", "search news",
    )
)  # fmt: skip


def _confusable(kinds: list[Kind]) -> bool:
    """Whether the same words may ask for two of them."""
    names = {kind.names[0] for kind in kinds}
    return any(len(names & alike) > 1 for alike in _SAME_WORDS)


def _draw_kinds(rng: Random, n: int) -> list[Kind]:
    """n kinds of tools, of which only one does sums."""
    if rng.random() < 0.22:
        return verb_kinds(rng, n)
    while True:
        if rng.random() < 0.4:  # of one sort, where the wrong one is near: what reads a file and what lists a folder
            start = rng.randrange(len(EVERY_KIND) - 2 * n + 1)
            kinds = rng.sample(EVERY_KIND[start : start + 2 * n], n)
        else:
            kinds = rng.sample(EVERY_KIND if rng.random() < 0.45 else EVERY_KIND + KINDS, n)
        for i in range(n):
            if rng.random() < 0.12:
                kinds[i] = verb_kinds(rng, 1)[0] if rng.random() < 0.6 else made_up_kind(rng)
        distinct = len({frozenset(kind.names) for kind in kinds}) == n
        if distinct and sum(map(calculates, kinds)) < 2 and not _confusable(kinds):
            return kinds


# What a tool's error is, and what is said of it.

_ERRORS = (
    "permission denied", "access denied", "not found", "file not found", "no such file or directory",
    "connection refused", "timeout", "timed out after {n} seconds", "invalid {p}", "unknown {p}", "missing {p}",
    "{v} not found", "{v} does not exist", "no such {p}: {v}", "the {p} {v} is unknown", "service unavailable",
    "internal server error", "rate limit exceeded", "quota exceeded", "unauthorized", "forbidden", "not allowed",
    "device is offline", "{w} is offline", "no connection", "network unreachable", "host unreachable", "disk full",
    "no space left on device", "out of memory", "syntax error", "command not found", "{w}: command not found",
    "bad request", "not logged in", "invalid API key", "token expired", "no results", "{v} is locked", "{v} is busy",
    "already exists", "{v} already exists", "too many requests", "not supported", "not implemented",
    "{p} must be a number", "{p} out of range", "value too large", "division by zero", "no internet",
    "server error {n}", "failed", "battery empty", "could not connect to {w}", "cannot open {v}", "can't read {v}",
    "unable to reach {w}", "unknown error", "{w} failed with code {n}", "no {w} available", "the {w} is broken",
    "{w} is missing", "login required", "payment required", "is a directory", "read-only file system",
    "the {w} did not answer", "no route to host", "{p} must be positive", "the {w} does not answer", "no such {w}",
    "unknown {w}", "bad {p}", "no {p} given", "the {w} is not there", "the {p} must be between 1 and {n}",
    "{w} expected", "{w} not available", "{w} not responding", "you have no {w}", "wrong {p}", "{p} is empty",
)  # fmt: skip


def _error(rng: Random, offer: Offer, values: Values) -> tuple[str, str]:
    """A tool's result that is an error, and the error's words."""
    parameter = rng.choice(offer.parameters) if offer.parameters else "request"
    value = written(rng.choice(values)) if values else stem(rng)
    short = value if isinstance(value, str | int | float) else stem(rng)
    form = rng.choice(_ERRORS) if rng.random() < 0.85 else f"{stem(rng)} {stem(rng)} {stem(rng)}"
    message = (
        form.replace("{n}", str(rng.randint(1, 600)))
        .replace("{p}", parameter)
        .replace("{w}", stem(rng))
        .replace("{v}", str(short))
    )
    if rng.random() < 0.4:
        message = message[0].upper() + message[1:]
    code = rng.choice((1, 2, 127, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503))
    shapes: tuple[object, ...] = (
        {"error": message}, {"error": message}, {"error": message}, {"status": "error", "message": message},
        {"ok": False, "reason": message}, {"success": False, "error": message},
        {"error": {"code": code, "message": message}}, {"code": code, "error": message}, {"detail": message},
        {"error": True, "message": message}, {"status": "failed", "reason": message},
        {"isError": True, "content": message}, f"Error: {message}", f"Error: {message}", f"ERROR: {message}",
        f"error: {message}", f"Error {code}: {message}", f"Failed: {message}", f"Traceback: {message}",
        f"fatal: {message}", f"Exception: {message}", message, message, f"HTTP {code}: {message}", f"{code} {message}",
    )  # fmt: skip
    shown = rng.choice(shapes)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False), message


def _failed(rng: Random, offer: Offer, values: Values) -> list[Turn]:
    shown, message = _error(rng, offer, values)
    answer = Turn("assistant", f"I am sorry, that did not work: {message}.", thought="The tool failed.")
    return [Turn("tool", shown), answer]


# The conversation

_NAMED = (
    " Use {0}.", " Use the {0}.", " Use {0} for it.", " Use the tool {0}.", " Call {0}.", " Use your {0} tool.",
    " Do it with {0}.", " Please use {0}.",
)  # fmt: skip


def _naming(rng: Random, question: str, name: str) -> str:
    """The request, and the tool to use by its name."""
    said = re.sub(r"[_.-]+", " ", name) if rng.random() < 0.5 else name
    return question + ("" if question[-1] in ".?!" else ".") + rng.choice(_NAMED).format(said)


def _one(rng: Random, split: Split, offers: list[Offer]) -> list[Turn]:
    chosen = rng.choice(offers)
    question, values = any_request(rng, split, chosen.kind)
    if rng.random() < 0.06:
        question = _naming(rng, question, chosen.name)
    call = Turn("assistant", calls=(call_of(chosen, values),), thought=f"The tool {chosen.name} fits.")
    way = rng.random()
    rest = _failed(rng, chosen, values) if way < 0.22 else answered(rng, [(chosen, values)]) if way < 0.38 else []
    return [Turn("user", question), call, *rest]


_TWICE = (" and {0}", " and {0}", ", and {0}", " and also {0}", " and then {0}", " & {0}", ", {0}", " as well as {0}")


def _two(rng: Random, split: Split, offers: list[Offer]) -> list[Turn]:
    first, second = (
        (rng.choice(offers), rng.choice(offers)) if len(offers) == 1 or rng.random() < 0.25 else rng.sample(offers, 2)
    )
    (one, values), (two, others) = any_request(rng, split, first.kind), any_request(rng, split, second.kind)
    if first is second and not (values and values != others):
        return _one(rng, split, offers)
    simple = (
        len(values) == 1 and not isinstance(values[0], Spoken) and not isinstance(others[0], Spoken)
        if values and others
        else False
    )
    if first is second and simple and one.count(str(values[0])) == 1 and rng.random() < 0.75:
        before = re.search(r"\b(in|on|at|for|of|from|to) $", one[: one.index(str(values[0]))])
        again = f"{before[0] if before and rng.random() < 0.5 else ''}{others[0]}"
        question = one.replace(str(values[0]), str(values[0]) + rng.choice(_TWICE).format(again))
    else:
        question = _both(rng, one, two)
    if plain(question) in _asked_prompts():
        return _one(rng, split, offers)
    thought = f"I need two calls: {first.name} and {second.name}."
    calls = Turn("assistant", calls=(call_of(first, values), call_of(second, others)), thought=thought)
    rest = answered(rng, [(first, values), (second, others)]) if rng.random() < 0.1 else []
    return [Turn("user", question), calls, *rest]


def _none(rng: Random, split: Split, absent: list[Kind]) -> list[Turn]:
    question, _ = any_request(rng, split, rng.choice(absent))
    return [Turn("user", question), Turn("assistant", NO_TOOL, thought="No tool fits.")]


def _plain(rng: Random, split: Split, offers: list[Offer]) -> list[Turn]:
    while True:
        sample = rng.choice((fact, small_talk))(rng, split)
        if not (has_digit(sample) and any(_takes_numbers(o.kind) for o in offers)):
            break
    said, answer = sample.turns
    return [said, Turn("assistant", answer.text, thought=f"No tool is needed. {answer.thought}")]


def _takes_numbers(kind: Kind) -> bool:
    return calculates(kind) or any(schema in ("number", "integer") for _, schema in kind.parameters)


def any_tools(rng: Random, split: Split) -> Sample:
    """One to six questions under one list of tools."""
    n_offered = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    kinds = _draw_kinds(rng, n_offered + 2)
    while True:
        offers = [any_offer(rng, kind) for kind in kinds[:n_offered]]
        if len({o.name for o in offers}) == n_offered:
            break
    turns: list[Turn] = []
    for _ in range(rng.choice((1, 2, 3, 3, 4, 5, 6))):
        way = rng.random()
        if way < 0.50:
            turns += _one(rng, split, offers)
        elif way < 0.74:
            turns += _two(rng, split, offers)
        elif way < 0.91:
            turns += _none(rng, split, kinds[n_offered:])
        else:
            turns += _plain(rng, split, offers)
    return Sample("any tools", tuple(turns), tools=tuple(o.described for o in offers))


_KEYS = words.words_of("path command text name file query url value id items to from city unit key title message")


def any_quoting(rng: Random, split: Split) -> Sample:
    """Words, paths and commands written as JSON: what is behind a space is spelled behind a quotation mark."""
    kinds = [kind for kind in (rng.choice(EVERY_KIND) for _ in range(8)) if kind.parameters][: rng.choice((1, 2, 3, 4))]
    values = [rng.choice(kind.draw(rng)) for kind in kinds] + [
        draw(rng) for draw in rng.sample((stem, stem, term, title, sentence, code_of), rng.choice((0, 1, 2, 3)))
    ]
    values = [value for value in values if not (isinstance(value, Spoken) and isinstance(value.value, bool | list))]
    values = (values or [stem(rng)])[: len(_KEYS)]
    if rng.random() < 0.35:
        question = rng.choice(("Write these as a JSON list: {0}", "JSON list: {0}", "Make a JSON list of {0}"))
        shown = [written(value) for value in values]
        text, answer = "; ".join(map(str, values)), json.dumps(shown, ensure_ascii=False)
    else:
        keys = rng.sample(_KEYS, len(values))
        question = rng.choice(
            ("As JSON: {0}", "Make a JSON object: {0}", "Write this as JSON: {0}", "Put this in JSON: {0}")
        )
        text = ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
        answer = json.dumps({key: written(value) for key, value in zip(keys, values, strict=True)}, ensure_ascii=False)
    turns = (Turn("user", question.format(text)), Turn("assistant", answer, thought="I write the words down."))
    return Sample("quoting", turns)
