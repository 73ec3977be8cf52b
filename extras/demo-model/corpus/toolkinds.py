"""The kinds of tools: what they may be called, what is asked of them, what they give back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from . import words
from .wordings import ASKS, MADE_UP_ASKS

Values = tuple[object, ...]
Schema = str | Mapping[str, object]  # a parameter's type, or its whole schema
ROOMS = words.words_of("kitchen bathroom bedroom garden hall office garage cellar")


@dataclass(frozen=True)
class Kind:
    """A kind of tool.

    names, about: what it may be called and described as. parameters: for each, its possible names and its schema.
    draw: gives the arguments. asks: the user's words; {0} is the first argument.
    results: gives the result and the answer's words, of the arguments. more: what else `asks` may name.
    """

    names: tuple[str, ...]
    about: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], Schema], ...]
    draw: Callable[[Random], Values]
    asks: tuple[str, ...]
    result: Callable[[Random, Values], tuple[dict[str, object], str]]
    more: tuple[str, ...] = ()


def _city(r: Random) -> str:
    return r.choice(words.CITIES) if r.random() < 0.7 else words.made_up(r)


def _person(r: Random) -> str:
    return r.choice(words.NAMES) if r.random() < 0.7 else words.made_up(r)


def _word(r: Random) -> str:
    if r.random() < 0.15:
        return r.choice(("the {0}", "my {0}", "old {0}", "a new {0}")).format(r.choice(words.THINGS))
    return r.choice(words.THINGS + words.FOODS + words.HOBBIES) if r.random() < 0.6 else words.made_up(r).lower()


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
         ASKS["get_weather"], _weather),
    Kind(("get_time", "current_time", "get_current_time", "clock"),
         ("Get the current time in a city", "Current time of a place", "Returns the local time"),
         ((("city", "location", "place", "timezone"), "string"),), lambda r: (_city(r),),
         ASKS["get_time"], _time),
    Kind(("send_email", "send_mail", "email", "write_email"),
         ("Send an email to a person", "Send an email", "Writes a mail"),
         ((("to", "recipient", "name"), "string"), (("subject", "topic", "title"), "string")),
         lambda r: (_person(r), _word(r)),
         ASKS["send_email"],
         _done("I have sent an email to {0} about {1}.")),
    Kind(("set_alarm", "alarm", "create_alarm"), ("Set an alarm", "Set an alarm at a time", "Creates an alarm"),
         ((("time", "at", "hour"), "string"),), lambda r: (f"{r.randint(0, 23):02}:{r.randint(0, 59):02}",),
         ASKS["set_alarm"],
         _done("The alarm is set for {0}.")),
    Kind(("set_timer", "timer", "start_timer"), ("Start a timer", "Set a timer in minutes", "Starts a countdown"),
         ((("minutes", "duration", "length"), "integer"),), lambda r: (r.randint(1, 90),),
         ASKS["set_timer"],
         _done("The timer runs for {0} minutes.")),
    Kind(("calculate", "calculator", "evaluate", "math"),
         ("Calculate an expression", "Evaluate a math expression", "A calculator"),
         ((("expression", "formula", "input"), "string"),),
         lambda r: (f"{r.randint(20, 999)} {r.choice('+-*/')} {r.randint(2, 999)}",),
         ASKS["calculate"],
         _number("result", "The result of {1} is {0}.", 2, 9999)),
    Kind(("add_numbers", "add", "sum"), ("Add two numbers", "Sum of two numbers", "Adds numbers"),
         ((("a", "x", "first"), "integer"), (("b", "y", "second"), "integer")),
         lambda r: (r.randint(20, 999), r.randint(20, 999)),
         ASKS["add_numbers"],
          _number("sum", "The sum of {1} and {2} is {0}.", 40, 1998)),
    Kind(("search", "web_search", "search_web", "find"), ("Search the web", "Search for something", "Web search"),
         ((("query", "q", "text"), "string"),),
         lambda r: (_word(r),),
         ASKS["search"],
         _number("hits", "I found {0} pages on {1}.", 2, 999)),
    Kind(("translate", "translate_text", "translator"), ("Translate a text", "Translate a word into a language"),
         ((("text", "word", "input"), "string"), (("language", "target", "to"), "string")),
         lambda r: (_word(r), r.choice(words.LANGUAGES)),
         ASKS["translate"],
         _translation),
    Kind(("play_music", "play_song", "play", "music"), ("Play music", "Play a song by an artist", "Plays songs"),
         ((("artist", "song", "name"), "string"),), lambda r: (words.made_up(r) if r.random() < 0.6 else _person(r),),
         ASKS["play_music"],
          _done("I am playing {0} now.")),
    Kind(("turn_on_light", "switch_light", "light_on", "turn_on"), ("Turn on the light in a room", "Switch on a light"),
         ((("room", "place", "name"), "string"),),
         lambda r: (r.choice(ROOMS),),
         ASKS["turn_on_light"],
         _done("The light in the {0} is on.")),
    Kind(("book_flight", "find_flight", "search_flights", "flight"),
         ("Find a flight", "Book a flight between two cities"),
         ((("origin", "from", "start"), "string"), (("destination", "to", "end"), "string")),
         lambda r: (_city(r), _city(r)),
         ASKS["book_flight"],
         _number("price", "A flight from {1} to {2} costs {0} euros.", 40, 999)),
    Kind(("create_reminder", "remind", "add_reminder", "reminder"),
         ("Create a reminder", "Remind the user", "Add a reminder"),
         ((("text", "task", "what"), "string"), (("day", "date", "when"), "string")),
         lambda r: (f"{r.choice(('buy', 'clean', 'find', 'sell', 'repair', 'paint'))} the {r.choice(words.THINGS)}",
                    r.choice(words.DAYS)),
         ASKS["create_reminder"],
         _done("I will remind you on {1} to {0}.")),
    Kind(("get_stock_price", "stock_price", "stock", "get_stock"),
         ("Get the price of a stock", "Stock price of a company"),
         ((("symbol", "company", "ticker"), "string"),),
         lambda r: (words.made_up(r) if r.random() < 0.5 else "".join(r.choices("ABCDEFGHIKLMNOPRSTUVXYZ", k=4)),),
         ASKS["get_stock_price"],
         _number("price", "One share of {1} costs {0} dollars.", 2, 999)),
    Kind(("get_distance", "distance", "route_length"),
         ("Get the distance between two places", "Distance of two cities"),
         ((("start", "from", "a"), "string"), (("end", "to", "b"), "string")), lambda r: (_city(r), _city(r)),
         ASKS["get_distance"],
         _number("kilometres", "It is {0} kilometres from {1} to {2}.", 10, 9999)),
    Kind(("convert_currency", "currency", "exchange", "convert"),
         ("Convert money", "Convert euros to another currency"),
         ((("amount", "value", "sum"), "integer"), (("currency", "to", "target"), "string")),
         lambda r: (r.randint(2, 999), r.choice(("dollars", "pounds", "yen", "francs", "crowns", "rupees"))),
         ASKS["convert_currency"],
         _number("result", "{1} euros are {0} {2}.", 2, 9999)),
    Kind(("get_user", "find_user", "lookup_user", "get_contact"),
         ("Look up a user", "Find a contact by name", "Get a user"),
         ((("name", "user", "username"), "string"),), lambda r: (_person(r),),
         ASKS["get_user"],
         _number("phone", "The phone number of {1} is {0}.", 1000, 9999)),
    Kind(("roll_dice", "dice", "roll"), ("Roll a dice", "Roll dice with some sides"),
         ((("sides", "max", "n"), "integer"),), lambda r: (r.randint(2, 99),),
         ASKS["roll_dice"],
         _number("roll", "You rolled a {0}.", 1, 20)),
)  # fmt: skip


def made_up_kind(r: Random) -> Kind:
    """A tool that nobody has heard of: only its description tells what it is for."""
    noun, parameter = words.made_up(r).lower(), r.choice((words.made_up(r).lower(), "name", "id", "city", "value"))
    tool = r.choice(("{0}", "get_{0}", "{0}_of", "find_{0}", "{0}_info")).format(
        noun if r.random() < 0.7 else words.made_up(r).lower()
    )
    number = r.random() < 0.3
    draw = (lambda r: (r.randint(2, 999),)) if number else (lambda r: (_city(r) if r.random() < 0.5 else _word(r),))
    about = tuple(text.format(noun) for text in ("Get the {0}", "Find the {0} of something", "Returns the {0}"))
    parameters = (((parameter,), "integer" if number else "string"),)
    result = _number(noun, f"The {noun} of {{1}} is {{0}}.", 2, 999)
    return Kind((tool,), about, parameters, draw, MADE_UP_ASKS, result, (noun, tool, parameter))
