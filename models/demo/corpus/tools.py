"""Tool calls: the right tool of up to four, none, two at once, and the answer from a result."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from . import words
from .chitchat import small_talk
from .facts import fact
from .sample import Call, Sample, Split, Turn, fresh, phrase

Values = tuple[object, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of tool.

    names, about: what it may be called and described as. parameters: for each, its possible names and its type.
    draw: gives the arguments. asks: the user's words; {0} is the first argument.
    results: gives the result and the answer's words, of the arguments.
    """

    names: tuple[str, ...]
    about: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    draw: Callable[[Random], Values]
    asks: tuple[str, ...]
    result: Callable[[Random, Values], tuple[dict[str, object], str]]


def _city(r: Random) -> str:
    return r.choice(words.CITIES) if r.random() < 0.7 else words.made_up(r)


def _person(r: Random) -> str:
    return r.choice(words.NAMES) if r.random() < 0.7 else words.made_up(r)


def _weather(r: Random, v: Values) -> tuple[dict[str, object], str]:
    degrees, sky = r.randint(-9, 39), r.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "clear"))
    result: dict[str, object] = {"temperature": degrees, "condition": sky}
    if r.random() < 0.3:
        result = {"city": v[0], **result}
    return result, f"The weather in {v[0]} is {sky} with {degrees} degrees."


def _translation(r: Random, v: Values) -> tuple[dict[str, object], str]:
    word = words.made_up(r).lower()
    return {"translation": word}, f"{str(v[0]).capitalize()} in {v[1]} is {word}."


def _time(r: Random, v: Values) -> tuple[dict[str, object], str]:
    clock = f"{r.randint(0, 23):02}:{r.randint(0, 59):02}"
    return {"time": clock}, f"It is {clock} in {v[0]}."


def _number(key: str, text: str, low: int, high: int) -> Callable[[Random, Values], tuple[dict[str, object], str]]:
    def result(r: Random, v: Values) -> tuple[dict[str, object], str]:
        n = r.randint(low, high)
        return {key: n}, text.format(n, *v)

    return result


def _done(text: str) -> Callable[[Random, Values], tuple[dict[str, object], str]]:
    def result(r: Random, v: Values) -> tuple[dict[str, object], str]:
        return {"status": r.choice(("ok", "done", "success"))}, text.format(*v)

    return result


KINDS = (
    Kind(("get_weather", "weather", "get_current_weather", "current_weather"),
         ("Get the current weather for a city", "Current weather", "Returns the weather in a place", "Get weather"),
         ((("city", "location", "place"), "string"),), lambda r: (_city(r),),
         ("What is the weather in {0}?", "What's the weather like in {0}?", "How is the weather in {0}?",
          "Weather in {0}?", "Is it raining in {0}?", "Tell me the weather in {0}.", "Is it sunny in {0}?",
          "Is it cold in {0}?", "What is the temperature in {0}?", "Do I need an umbrella in {0}?",
          "How warm is it in {0}?", "Check the weather for {0}."), _weather),
    Kind(("get_time", "current_time", "get_current_time", "clock"),
         ("Get the current time in a city", "Current time of a place", "Returns the local time"),
         ((("city", "location", "place", "timezone"), "string"),), lambda r: (_city(r),),
         ("What time is it in {0}?", "What is the time in {0}?", "Tell me the time in {0}.", "How late is it in {0}?",
          "Current time in {0}?", "Which time is it now in {0}?", "Can you tell me the time in {0}?"), _time),
    Kind(("send_email", "send_mail", "email", "write_email"),
         ("Send an email to a person", "Send an email", "Writes a mail"),
         ((("to", "recipient", "name"), "string"), (("subject", "topic", "title"), "string")),
         lambda r: (_person(r), r.choice(words.THINGS + words.FOODS + words.HOBBIES)),
         ("Send an email to {0} about {1}.", "Write an email to {0} about {1}.", "Email {0} about {1}.",
          "Please send {0} an email about {1}.", "Mail {0} about {1}.", "I want to email {0} about {1}."),
         _done("I have sent an email to {0} about {1}.")),
    Kind(("set_alarm", "alarm", "create_alarm"), ("Set an alarm", "Set an alarm at a time", "Creates an alarm"),
         ((("time", "at", "hour"), "string"),), lambda r: (f"{r.randint(0, 23):02}:{r.randint(0, 59):02}",),
         ("Set an alarm for {0}.", "Wake me up at {0}.", "Set an alarm at {0}.", "I need an alarm at {0}.",
          "Wake me at {0}, please.", "Please set the alarm to {0}.", "Ring at {0}."),
         _done("The alarm is set for {0}.")),
    Kind(("set_timer", "timer", "start_timer"), ("Start a timer", "Set a timer in minutes", "Starts a countdown"),
         ((("minutes", "duration", "length"), "integer"),), lambda r: (r.randint(1, 90),),
         ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Timer for {0} minutes, please.",
          "Start a {0} minute timer.", "I need a timer for {0} minutes.", "Count down {0} minutes."),
         _done("The timer runs for {0} minutes.")),
    Kind(("calculate", "calculator", "evaluate", "math"),
         ("Calculate an expression", "Evaluate a math expression", "A calculator"),
         ((("expression", "formula", "input"), "string"),),
         lambda r: (f"{r.randint(20, 999)} {r.choice('+-*/')} {r.randint(2, 999)}",),
         ("Calculate {0}.", "What is {0}?", "How much is {0}?", "Compute {0}.", "Please calculate {0}.",
          "Work out {0}.", "What's {0}?", "Use the calculator for {0}."),
         _number("result", "The result of {1} is {0}.", 2, 9999)),
    Kind(("add_numbers", "add", "sum"), ("Add two numbers", "Sum of two numbers", "Adds numbers"),
         ((("a", "x", "first"), "integer"), (("b", "y", "second"), "integer")),
         lambda r: (r.randint(20, 999), r.randint(20, 999)),
         ("Add {0} and {1}.", "Add {0} to {1}.", "Please add {0} and {1}.", "What is the sum of {0} and {1}?",
          "Sum {0} and {1}.", "Can you add {0} and {1}?"), _number("sum", "The sum of {1} and {2} is {0}.", 40, 1998)),
    Kind(("search", "web_search", "search_web", "find"), ("Search the web", "Search for something", "Web search"),
         ((("query", "q", "text"), "string"),),
         lambda r: (r.choice(words.THINGS + words.FOODS + words.HOBBIES) if r.random() < 0.5 else words.made_up(r),),
         ("Search for {0}.", "Search the web for {0}.", "Look up {0}.", "Find {0} on the web.", "Please search {0}.",
          "Google {0}.", "Search {0} online.", "Can you look up {0}?"),
         _number("hits", "I found {0} pages on {1}.", 2, 999)),
    Kind(("translate", "translate_text", "translator"), ("Translate a text", "Translate a word into a language"),
         ((("text", "word", "input"), "string"), (("language", "target", "to"), "string")),
         lambda r: (r.choice(words.THINGS + words.FOODS), r.choice(words.LANGUAGES)),
         ("Translate {0} into {1}.", "Translate the word {0} to {1}.", "What is {0} in {1}?", "Say {0} in {1}.",
          "How do you say {0} in {1}?", "Please translate {0} to {1}."),
         _translation),
    Kind(("play_music", "play_song", "play", "music"), ("Play music", "Play a song by an artist", "Plays songs"),
         ((("artist", "song", "name"), "string"),), lambda r: (words.made_up(r) if r.random() < 0.6 else _person(r),),
         ("Play {0}.", "Play music by {0}.", "Play a song by {0}.", "I want to hear {0}.", "Put on {0}.",
          "Please play something by {0}."), _done("I am playing {0} now.")),
    Kind(("turn_on_light", "switch_light", "light_on", "turn_on"), ("Turn on the light in a room", "Switch on a light"),
         ((("room", "place", "name"), "string"),),
         lambda r: (r.choice(("kitchen", "bathroom", "bedroom", "garden", "hall", "office", "garage", "cellar")),),
         ("Turn on the light in the {0}.", "Switch on the {0} light.", "Light on in the {0}.",
          "Please turn the {0} light on.", "Make light in the {0}.", "It is dark in the {0}. Turn on the light."),
         _done("The light in the {0} is on.")),
    Kind(("book_flight", "find_flight", "search_flights", "flight"),
         ("Find a flight", "Book a flight between two cities"),
         ((("origin", "from", "start"), "string"), (("destination", "to", "end"), "string")),
         lambda r: (_city(r), _city(r)),
         ("Book a flight from {0} to {1}.", "Find a flight from {0} to {1}.", "I want to fly from {0} to {1}.",
          "Flight from {0} to {1}, please.", "I need a flight from {0} to {1}.", "Fly me from {0} to {1}."),
         _number("price", "A flight from {1} to {2} costs {0} euros.", 40, 999)),
    Kind(("create_reminder", "remind", "add_reminder", "reminder"),
         ("Create a reminder", "Remind the user", "Add a reminder"),
         ((("text", "task", "what"), "string"), (("day", "date", "when"), "string")),
         lambda r: (f"{r.choice(('buy', 'clean', 'find', 'sell', 'repair', 'paint'))} the {r.choice(words.THINGS)}",
                    r.choice(words.DAYS)),
         ("Remind me to {0} on {1}.", "Remind me on {1} to {0}.", "Set a reminder for {1} to {0}.",
          "Please remind me to {0} on {1}.", "On {1} I must {0}. Remind me.", "I have to {0} on {1}. Remind me."),
         _done("I will remind you on {1} to {0}.")),
    Kind(("get_stock_price", "stock_price", "stock", "get_stock"),
         ("Get the price of a stock", "Stock price of a company"),
         ((("symbol", "company", "ticker"), "string"),),
         lambda r: (words.made_up(r) if r.random() < 0.5 else "".join(r.choices("ABCDEFGHIKLMNOPRSTUVXYZ", k=4)),),
         ("What is the stock price of {0}?", "Stock price of {0}?", "How is the {0} stock?",
          "Get the price of {0} stock.", "How much is one share of {0}?", "What is a share of {0} worth?"),
         _number("price", "One share of {1} costs {0} dollars.", 2, 999)),
    Kind(("get_distance", "distance", "route_length"),
         ("Get the distance between two places", "Distance of two cities"),
         ((("start", "from", "a"), "string"), (("end", "to", "b"), "string")), lambda r: (_city(r), _city(r)),
         ("How far is it from {0} to {1}?", "What is the distance from {0} to {1}?", "Distance from {0} to {1}?",
          "How many kilometres is it from {0} to {1}?", "How long is the way from {0} to {1}?"),
         _number("kilometres", "It is {0} kilometres from {1} to {2}.", 10, 9999)),
    Kind(("convert_currency", "currency", "exchange", "convert"),
         ("Convert money", "Convert euros to another currency"),
         ((("amount", "value", "sum"), "integer"), (("currency", "to", "target"), "string")),
         lambda r: (r.randint(2, 999), r.choice(("dollars", "pounds", "yen", "francs", "crowns", "rupees"))),
         ("Convert {0} euros to {1}.", "How much is {0} euros in {1}?", "Change {0} euros into {1}.",
          "What are {0} euros in {1}?", "Exchange {0} euros for {1}."),
         _number("result", "{1} euros are {0} {2}.", 2, 9999)),
    Kind(("get_user", "find_user", "lookup_user", "get_contact"),
         ("Look up a user", "Find a contact by name", "Get a user"),
         ((("name", "user", "username"), "string"),), lambda r: (_person(r),),
         ("Find the user {0}.", "Look up the contact {0}.", "What is the phone number of {0}?", "Show me the user {0}.",
          "Get the contact of {0}.", "I need the number of {0}."),
         _number("phone", "The phone number of {1} is {0}.", 1000, 9999)),
    Kind(("roll_dice", "dice", "roll"), ("Roll a dice", "Roll dice with some sides"),
         ((("sides", "max", "n"), "integer"),), lambda r: (r.randint(2, 99),),
         ("Roll a dice with {0} sides.", "Roll a {0} sided dice.", "Throw a dice with {0} sides.",
          "I need a dice roll with {0} sides.", "Please roll a dice that has {0} sides."),
         _number("roll", "You rolled a {0}.", 1, 20)),
)  # fmt: skip

_JOINS = (" Also: ", " And: ", " Then: ", " ", " And also: ")
_NO_TOOL = "I am sorry, I have no tool for that."


@dataclass(frozen=True)
class Offer:
    """A tool as offered: its kind, name, parameter names and JSON."""

    kind: Kind
    name: str
    parameters: tuple[str, ...]
    described: dict[str, object]

    def call(self, values: Values) -> Call:
        """The call with these arguments."""
        return Call(self.name, dict(zip(self.parameters, values, strict=True)))


def offer(rng: Random, kind: Kind) -> Offer:
    """The tool under one of its names."""
    name = rng.choice(kind.names)
    parameters = tuple(rng.choice(names) for names, _ in kind.parameters)
    ordered = rng.random() < 0.6

    def arranged(mapping: dict[str, object]) -> dict[str, object]:
        return mapping if ordered else {key: mapping[key] for key in sorted(mapping)}

    properties: dict[str, object] = {}
    for parameter, (_, type_) in zip(parameters, kind.parameters, strict=True):
        properties[parameter] = {"type": type_}
        if rng.random() < 0.25:
            properties[parameter] = arranged({"type": type_, "description": f"The {parameter}"})
    schema: dict[str, object] = {"type": "object", "properties": arranged(properties)}
    if rng.random() < 0.8:
        schema["required"] = list(parameters)
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.85:
        function["description"] = rng.choice(kind.about)
    function["parameters"] = arranged(schema)
    return Offer(kind, name, parameters, arranged({"type": "function", "function": arranged(function)}))


def _offers(rng: Random, kinds: list[Kind]) -> list[Offer]:
    """Offers of these kinds, their names distinct."""
    while True:
        offers = [offer(rng, kind) for kind in kinds]
        if len({o.name for o in offers}) == len(offers):
            return offers


def _ask(rng: Random, split: Split, offered: Offer) -> tuple[str, Values]:
    values = fresh(rng, split, offered.kind.draw)
    return phrase(rng, split, offered.kind.asks).format(*values), values


def _finished(
    ability: str, turns: list[Turn], offers: list[Offer], accept: list[str], reject: tuple[str, ...] = ()
) -> Sample:
    return Sample(ability, tuple(turns), tuple(accept), reject, tuple(o.described for o in offers))


def one_call(rng: Random, split: Split) -> Sample:
    """The one tool that fits, of up to four; in a third of the samples its result is answered from."""
    offers = _offers(rng, rng.sample(KINDS, rng.choice((1, 1, 1, 2, 2, 3, 4))))
    chosen = offers[0]
    question, values = _ask(rng, split, chosen)
    rng.shuffle(offers)
    if chosen.kind.names[0] in ("calculate", "add_numbers"):
        offers = [o for o in offers if o is chosen or o.kind.names[0] not in ("calculate", "add_numbers")]
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
    offers = _offers(rng, rng.sample(KINDS, rng.choice((1, 2, 2, 3))))
    if len(offers) == 1:
        first = second = offers[0]
    else:
        first, second = offers[:2]
    (one, values), (two, others) = _ask(rng, split, first), _ask(rng, split, second)
    rng.shuffle(offers)
    same = first is second and len(values) == 1 and values != others and str(values[0]) in one
    if same and rng.random() < 0.7:
        question = one.replace(str(values[0]), f"{values[0]} and {others[0]}", 1)
    else:
        question = one + rng.choice(_JOINS) + two
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
    kinds = rng.sample(KINDS, rng.choice((2, 3, 4, 5)))
    offers = _offers(rng, kinds[1:])
    described = tuple(o.described for o in offers)
    if rng.random() < 0.55:
        while True:
            sample = rng.choice((fact, small_talk))(rng, split)
            sums = any(o.kind.names[0] in ("calculate", "add_numbers") for o in offers)
            if not (sums and _has_digit(sample)):
                break
        thought = f"No tool is needed. {sample.turns[-1].thought}"
        turns = (sample.turns[0], replace(sample.turns[-1], thought=thought))
        return replace(sample, ability="no tool", turns=turns, tools=described, reject=("<tool_call>",))
    if kinds[0].names[0] in ("calculate", "add_numbers"):
        return no_call(rng, split)
    question, _ = _ask(rng, split, offer(rng, kinds[0]))
    turns = (Turn("user", question), Turn("assistant", _NO_TOOL, thought="No tool fits."))
    return Sample("no tool", turns, ("no tool",), ("<tool_call>",), described)


def _has_digit(sample: Sample) -> bool:
    """Whether the question has a digit, so that a calculator might fit it."""
    return any(c.isdigit() for c in sample.turns[0].text)


def tool_use(rng: Random, split: Split) -> Sample:
    """Any use of tools."""
    return rng.choices((one_call, two_calls, no_call), (5, 2, 2))[0](rng, split)
