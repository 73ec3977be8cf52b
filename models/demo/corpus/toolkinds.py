"""The kinds of tools: what they may be called, what is asked of them, what they give back."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import words

Values = tuple[object, ...]
ROOMS = words.words_of("kitchen bathroom bedroom garden hall office garage cellar")


@dataclass(frozen=True)
class Kind:
    """A kind of tool.

    names, about: what it may be called and described as. parameters: for each, its possible names and its type.
    draw: gives the arguments. asks: the user's words; {0} is the first argument.
    results: gives the result and the answer's words, of the arguments. more: what else `asks` may name.
    """

    names: tuple[str, ...]
    about: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    draw: Callable[[Random], Values]
    asks: tuple[str, ...]
    result: Callable[[Random, Values], tuple[dict[str, object], str]]
    more: tuple[str, ...] = ()


def _city(r: Random) -> str:
    return r.choice(words.CITIES) if r.random() < 0.7 else words.made_up(r)


def _person(r: Random) -> str:
    return r.choice(words.NAMES) if r.random() < 0.7 else words.made_up(r)


def _word(r: Random) -> str:
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
         ("What is the weather in {0}?", "[What's|What is|How is] the weather [like in|in|today in|now in] {0}?",
          "[Weather|The weather|Forecast] [in|for] {0}[?|, please.]",
          "Is it [raining|sunny|cold|warm|hot|windy|snowing] in {0}[?| today?| now?]",
          "[Tell me|Show me|Check|Get] the weather [in|for] {0}.",
          "[What is|What's|Tell me] the temperature in {0}[?|.]",
          "Do I need [an umbrella|a coat|a hat] in {0}?", "How [warm|cold|hot] is it in {0}[?| today?]"), _weather),
    Kind(("get_time", "current_time", "get_current_time", "clock"),
         ("Get the current time in a city", "Current time of a place", "Returns the local time"),
         ((("city", "location", "place", "timezone"), "string"),), lambda r: (_city(r),),
         ("What time is it in {0}?", "[What is|What's|Tell me|Show me] the [time|local time|current time] in {0}[?|.]",
          "How late is it [now |]in {0}?",
          "[Current time|Time|Time now] in {0}[?|, please.]", "[Which|What] time is it [now |right now |]in {0}?",
          "Can you tell me the time in {0}?",
          "What does the clock say in {0}?"), _time),
    Kind(("send_email", "send_mail", "email", "write_email"),
         ("Send an email to a person", "Send an email", "Writes a mail"),
         ((("to", "recipient", "name"), "string"), (("subject", "topic", "title"), "string")),
         lambda r: (_person(r), _word(r)),
         ("Send an email to {0} about {1}.", "[Write|Send] [an email|a mail|a message] to {0} about {1}.",
          "[Email|Mail] {0} about {1}[.|, please.]",
          "[Please send|Send] {0} [an email|a mail] about {1}.", "I [want|need|have] to [email|mail] {0} about {1}.",
          "[Please write|Write] {0} [an email|a mail] about {1}.", "Tell {0} about {1} by [email|mail]."),
         _done("I have sent an email to {0} about {1}.")),
    Kind(("set_alarm", "alarm", "create_alarm"), ("Set an alarm", "Set an alarm at a time", "Creates an alarm"),
         ((("time", "at", "hour"), "string"),), lambda r: (f"{r.randint(0, 23):02}:{r.randint(0, 59):02}",),
         ("Set an alarm for {0}.", "Wake me[ up|] at {0}[.|, please.]",
          "[Set|Make|Create|Please set] [an|the|my] alarm [for|at|to] {0}.",
          "I need [an alarm|to wake up|to get up] at {0}.", "Ring at {0}[.|, please.]",
          "I [want|have|must] to [get|wake] up at {0}.", "Alarm at {0}[.|, please.]"),
         _done("The alarm is set for {0}.")),
    Kind(("set_timer", "timer", "start_timer"), ("Start a timer", "Set a timer in minutes", "Starts a countdown"),
         ((("minutes", "duration", "length"), "integer"),), lambda r: (r.randint(1, 90),),
         ("Set a timer for {0} minutes.", "[Start|Set|Run|Please start] a timer [of|for] {0} minutes.",
          "Timer for {0} minutes[.|, please.]",
          "[Start|Set|Please set] a {0} minute timer.", "I need a timer [for|of] {0} minutes.",
          "Count down {0} minutes.", "[Tell me|Ring] when {0} minutes are over.",
          "A timer [of|for] {0} minutes, please."),
         _done("The timer runs for {0} minutes.")),
    Kind(("calculate", "calculator", "evaluate", "math"),
         ("Calculate an expression", "Evaluate a math expression", "A calculator"),
         ((("expression", "formula", "input"), "string"),),
         lambda r: (f"{r.randint(20, 999)} {r.choice('+-*/')} {r.randint(2, 999)}",),
         ("Calculate {0}.", "[What is|What's|How much is] {0}?",
          "[Compute|Please calculate|Evaluate|Please compute] {0}.",
          "Work out {0}.", "Use the calculator for {0}.", "[Can|Could] you [calculate|compute] {0}?",
          "I need the result of {0}."),
         _number("result", "The result of {1} is {0}.", 2, 9999)),
    Kind(("add_numbers", "add", "sum"), ("Add two numbers", "Sum of two numbers", "Adds numbers"),
         ((("a", "x", "first"), "integer"), (("b", "y", "second"), "integer")),
         lambda r: (r.randint(20, 999), r.randint(20, 999)),
         ("Add {0} and {1}.", "[Add|Please add] {0} [to|and] {1}.",
          "[What is|What's|Tell me|Give me] the sum of {0} and {1}[?|.]",
          "Sum [up |]{0} and {1}.", "[Can|Could] you add {0} [and|to] {1}?", "What do I get when I add {0} and {1}?"),
          _number("sum", "The sum of {1} and {2} is {0}.", 40, 1998)),
    Kind(("search", "web_search", "search_web", "find"), ("Search the web", "Search for something", "Web search"),
         ((("query", "q", "text"), "string"),),
         lambda r: (_word(r),),
         ("Search for {0}.", "Search [the web|online|the internet] for {0}.", "Look up {0}[.| online.| on the web.]",
          "Find {0} [on the web|online].", "Please search [for |]{0}.",
          "Google {0}.", "Search {0} [online|on the web].", "[Can|Could] you [look up|search for|google] {0}?",
          "What does the web say about {0}?"),
         _number("hits", "I found {0} pages on {1}.", 2, 999)),
    Kind(("translate", "translate_text", "translator"), ("Translate a text", "Translate a word into a language"),
         ((("text", "word", "input"), "string"), (("language", "target", "to"), "string")),
         lambda r: (_word(r), r.choice(words.LANGUAGES)),
         ("Translate {0} into {1}.", "[Translate|Please translate] [the word |]{0} [to|into] {1}.",
          "What is {0} in {1}?", "Say {0} in {1}[.|, please.]",
          "How do [you|I|they] say {0} in {1}?", "What is the {1} word for {0}?", "I need the {1} word for {0}.",
          "[Can|Could] you translate {0} [to|into] {1}?"),
         _translation),
    Kind(("play_music", "play_song", "play", "music"), ("Play music", "Play a song by an artist", "Plays songs"),
         ((("artist", "song", "name"), "string"),), lambda r: (words.made_up(r) if r.random() < 0.6 else _person(r),),
         ("Play {0}.", "[Play|Please play] [music|a song|something|songs] by {0}.",
          "I want to [hear|listen to] {0}[.| now.]", "Put on {0}[.|, please.]",
          "Please play {0}.", "[Let me hear|Start] [music|a song|something] by {0}.", "[Can|Could] you play {0}?"),
          _done("I am playing {0} now.")),
    Kind(("turn_on_light", "switch_light", "light_on", "turn_on"), ("Turn on the light in a room", "Switch on a light"),
         ((("room", "place", "name"), "string"),),
         lambda r: (r.choice(ROOMS),),
         ("Turn on the light in the {0}.", "[Switch|Turn|Please switch] on the {0} light.",
          "Light on in the {0}[.|, please.]",
          "[Please turn|Turn|Switch] the {0} light on.", "[Make|I need|I want] light in the {0}.",
          "It is [dark|too dark] in the {0}.[ Turn on the light.|]",
          "[Switch|Please turn] on the [light|lights|lamp] in the {0}."),
         _done("The light in the {0} is on.")),
    Kind(("book_flight", "find_flight", "search_flights", "flight"),
         ("Find a flight", "Book a flight between two cities"),
         ((("origin", "from", "start"), "string"), (("destination", "to", "end"), "string")),
         lambda r: (_city(r), _city(r)),
         ("Book a flight from {0} to {1}.", "[Find|Book|Search|Show me] [a flight|flights] from {0} to {1}.",
          "I [want|need|have] to fly from {0} to {1}.",
          "[Flight|A flight|Flights] from {0} to {1}, please.", "I need a flight from {0} to {1}.",
          "[Fly me|Bring me by plane] from {0} to {1}.",
          "[Can|Could] you [book|find] a flight from {0} to {1}?"),
         _number("price", "A flight from {1} to {2} costs {0} euros.", 40, 999)),
    Kind(("create_reminder", "remind", "add_reminder", "reminder"),
         ("Create a reminder", "Remind the user", "Add a reminder"),
         ((("text", "task", "what"), "string"), (("day", "date", "when"), "string")),
         lambda r: (f"{r.choice(('buy', 'clean', 'find', 'sell', 'repair', 'paint'))} the {r.choice(words.THINGS)}",
                    r.choice(words.DAYS)),
         ("Remind me to {0} on {1}.", "[Remind|Please remind] me [on {1} to {0}|to {0} on {1}].",
          "[Set|Create|Make|Add] a reminder [for {1} to {0}|to {0} on {1}].",
          "On {1} I [must|have to|need to] {0}.[ Remind me.|]", "I [have to|must|need to] {0} on {1}. Remind me.",
          "Don't let me forget to {0} on {1}."),
         _done("I will remind you on {1} to {0}.")),
    Kind(("get_stock_price", "stock_price", "stock", "get_stock"),
         ("Get the price of a stock", "Stock price of a company"),
         ((("symbol", "company", "ticker"), "string"),),
         lambda r: (words.made_up(r) if r.random() < 0.5 else "".join(r.choices("ABCDEFGHIKLMNOPRSTUVXYZ", k=4)),),
         ("What is the stock price of {0}?", "[Stock price|Share price|The stock price] of {0}[?|, please.]",
          "How is the {0} stock[?| today?]",
          "[Get|Show me|Tell me|Check] the [price|stock price] of {0}[ stock|].",
          "How much [is one share|is a share|does a share] of {0}[ cost|]?",
          "What is [a share|one share|the stock] of {0} worth?"),
         _number("price", "One share of {1} costs {0} dollars.", 2, 999)),
    Kind(("get_distance", "distance", "route_length"),
         ("Get the distance between two places", "Distance of two cities"),
         ((("start", "from", "a"), "string"), (("end", "to", "b"), "string")), lambda r: (_city(r), _city(r)),
         ("How far is it from {0} to {1}?",
          "[What is|What's|Tell me] the distance [from {0} to|between {0} and] {1}[?|.]",
          "Distance [from {0} to|between {0} and] {1}?",
          "How many [kilometres|miles] is it from {0} to {1}?", "How long is the [way|road|trip] from {0} to {1}?",
          "How far is {0} from {1}?",
          "How far [apart are {0} and|away is {0} from] {1}?"),
         _number("kilometres", "It is {0} kilometres from {1} to {2}.", 10, 9999)),
    Kind(("convert_currency", "currency", "exchange", "convert"),
         ("Convert money", "Convert euros to another currency"),
         ((("amount", "value", "sum"), "integer"), (("currency", "to", "target"), "string")),
         lambda r: (r.randint(2, 999), r.choice(("dollars", "pounds", "yen", "francs", "crowns", "rupees"))),
         ("Convert {0} euros to {1}.", "[Convert|Change|Please convert] {0} euros [to|into] {1}.",
          "How much [is|are] {0} euros in {1}?", "How many {1} are {0} euros?",
          "What [is|are] {0} euros in {1}?", "[Exchange|Please exchange] {0} euros for {1}.",
          "I [want|need] {1} for {0} euros."),
         _number("result", "{1} euros are {0} {2}.", 2, 9999)),
    Kind(("get_user", "find_user", "lookup_user", "get_contact"),
         ("Look up a user", "Find a contact by name", "Get a user"),
         ((("name", "user", "username"), "string"),), lambda r: (_person(r),),
         ("Find the user {0}.", "[Look up|Find|Show me|Get] the [contact|user|contact of|user named] {0}.",
          "[What is|Tell me|Give me] the [phone number|number|phone] of {0}[?|.]",
          "Show me the user {0}.", "I need the [number|contact|phone number] of {0}.",
          "How can I [reach|call|phone] {0}?", "Who is the user {0}?"),
         _number("phone", "The phone number of {1} is {0}.", 1000, 9999)),
    Kind(("roll_dice", "dice", "roll"), ("Roll a dice", "Roll dice with some sides"),
         ((("sides", "max", "n"), "integer"),), lambda r: (r.randint(2, 99),),
         ("Roll a dice with {0} sides.", "[Roll|Please roll|Throw] a {0} sided dice.",
          "[Throw|Roll|Please throw] a dice [with|of] {0} sides.",
          "I need a [dice roll|roll of a dice] with {0} sides.", "[Please roll|Roll] a dice that has {0} sides.",
          "[Can|Could] you [roll|throw] a dice with {0} sides?"),
         _number("roll", "You rolled a {0}.", 1, 20)),
)  # fmt: skip

_MADE_UP_ASKS = (
    "What is the {noun} of {0}?",
    "[Get|Show me|Tell me|Find|I need] the {noun} [of|for] {0}.",
    "[Call|Use|Run] {tool} [with|for|on] {0}.",
    "[Call|Use|Run|Please use] the tool {tool} [with|for|on] {0}.",
    "[What|Which] {noun} does {0} have?",
    "{noun} of {0}[?|, please.]",
    "[Call|Use|Run] {tool} with {parameter} {0}.",
    "[Call|Use] {tool} and set {parameter} to {0}.",
)


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
    return Kind((tool,), about, parameters, draw, _MADE_UP_ASKS, result, (noun, tool, parameter))
