"""Facts: capitals, sums and differences, opposites, days, months, colours, animals."""

from random import Random

from . import words
from .sample import Sample, Split, article, exchange, phrase

_CAPITAL = (
    "What is the capital of {0}?",
    "[What's|What is] the capital [of|city of] {0}?",
    "Which [city|town] is the capital of {0}?",
    "[Tell me|Name|Give me|Say] the capital [of|city of] {0}.",
    "[c|C]apital of {0}[?|]",
    "{0}'s capital[?| city?| please.]",
    "Do you know the capital of {0}?",
    "[What|Which] city is {0}'s capital?",
    "[Can|Could] you [name|tell me] the capital [city |]of {0}?",
    "The capital of {0} is [which city|what|which|called what]?",
    "I need [the|to know the] capital of {0}.",
    "Which capital does {0} have?",
    "What is the name of [{0}'s capital city|{0}'s capital|the capital of {0}]?",
    "[How|What] is the capital [city |]of {0} called?",
    "Please [name|tell me|say|give me] [{0}'s capital|the capital of {0}].",
    "Can you tell me [what|which city] the capital of {0} is?",
    "I forgot the capital of {0}.[ What is it?|]",
    "My homework asks for the capital of {0}.",
    "[What is|What's] {0}'s capital[?| city?]",
    "Tell me what the capital of {0} is.",
)
_COUNTRY = (
    "Which country has the capital {0}?",
    "{0} is the capital of [which|what] country?",
    "[What|Which] country is {0} the capital of?",
    "[Of|For] [which|what] country is {0} the capital?",
    "Whose capital is {0}?",
    "[Name|Tell me|Give me] the country whose capital is {0}.",
    "[Tell me|Do you know|Can you tell me] which country {0} is the capital of[.|?]",
    "[Which|What] country's capital is {0}?",
    "[Which|What] country has {0} as [its|the] capital?",
    "[Which|What] is the country with the capital {0}?",
)
_SUM = (
    "What is {0} + {1}?",
    "[What is|What's|How much is] {0} [plus|+] {1}?",
    "{0} + {1}[| =| = ?|?]",
    "{0}+{1}[=?|=||?]",
    "Add {0} and {1}.",
    "Add {1} to {0}.",
    "[Calculate|Compute|Solve] {0} [+|plus] {1}.",
    "What do [you|I|we] get when [you|I|we] add {0} and {1}?",
    "[Give me|Tell me|What is|What's] the sum of {0} and {1}[.|?]",
    "[Can|Could] you add {0} and {1}?",
    "{0} [plus|+] {1} is [what|how much|equal to what]?",
    "What does {0} [+|plus] {1} [make|give|equal]?",
    "[Please work|Work] out {0} [+|plus] {1}.",
    "[Tell me|Do you know] what {0} [+|plus] {1} is.",
)
_DIFFERENCE = (
    "What is {0} - {1}?",
    "[What is|What's|How much is] {0} [minus|-] {1}?",
    "{0} - {1}[| =| = ?|?]",
    "{0}-{1}[=?|=||?]",
    "[Subtract|Take] {1} from {0}.",
    "[Calculate|Compute|Solve] {0} [-|minus] {1}.",
    "Take {1} away from {0}.",
    "What is left when [you|I|we] take {1} from {0}?",
    "[Give me|Tell me|What is|What's] the difference of {0} and {1}[.|?]",
    "[Can|Could] you [subtract|take] {1} from {0}?",
    "{0} [minus|-] {1} is [what|how much|equal to what]?",
    "What does {0} [-|minus] {1} [make|give|equal]?",
    "[Please work|Work] out {0} [-|minus] {1}.",
    "[Tell me|Do you know] what {0} [-|minus] {1} is.",
)
_OPPOSITE = (
    "What is the opposite of {0}?",
    "[What's|Tell me|Give me|Name|Do you know] the opposite of {0}[?|.]",
    "[o|O]pposite of {0}[?|]",
    "[Which|What] word is the opposite of {0}?",
    "What is the opposite of the word {0}?",
    "The opposite of {0} is [what|which word|what word]?",
    "[What|Which] word means the opposite of {0}?",
    "[Can|Could] you [tell me|name|give me] the opposite of {0}?",
    "I need the opposite of {0}.",
    "[Please tell|Tell] me what the opposite of {0} is.",
    "[What|Which] is the opposite word [of|to|for] {0}?",
)
_AFTER = (
    "Which {1} comes after {0}?",
    "[What|Which] {1} [comes|is|is right|comes right|comes directly] after {0}?",
    "[What|Which] {1} follows {0}?",
    "What [comes|follows|is next] after {0}?",
    "[Name|Tell me|Say|Give me] the [next |]{1} after {0}.",
    "Tell me [the|which] {1} [that |]comes after {0}.",
    "After {0} comes [which|what] {1}?",
    "What is the [next {1}|{1}|{1} right] after {0}?",
    "[Which|What] {1} is next after {0}?",
)
_BEFORE = (
    "Which {1} comes before {0}?",
    "[What|Which] {1} [comes|is|is right|comes right|comes directly|is just] before {0}?",
    "What [comes|is right|is] before {0}?",
    "[Name|Tell me|Say|Give me] the {1} [just |right |]before {0}.",
    "Tell me [the|which] {1} [that |]comes before {0}.",
    "Before {0} comes [which|what] {1}?",
    "What is the {1} [just |right |]before {0}?",
)
_LENGTH = (
    "How many days does {0} have?",
    "How many days [are|are there] in {0}?",
    "How long is {0}[?| in days?]",
    "Tell me how many days {0} has.",
    "{0} has how many days?",
    "How many days [has {0}|has {0} got|do I have in {0}]?",
    "[What is|Tell me|What's] the number of days in {0}[?|.]",
)
_ORDINAL = (
    "What is the {0} month of the year?",
    "[Which|What] month is the {0} [month|month of the year|one]?",
    "[Name|Tell me|Give me|Say] the {0} month[.| of the year.]",
    "[What's|Which is|What is] the {0} month[?| of the year?]",
    "The {0} month[?| of the year is which?]",
)
_COUNTS = (
    (("How many days are in a week?", "How many days [does a week have|are there in a week|has a week]?",
      "A week has how many days?", "[Tell me|Do you know] how many days a week has."),
     "A week has 7 days.", "7"),
    (("How many months are in a year?", "How many months [does a year have|are there in a year|has a year]?",
      "A year has how many months?", "[Tell me|Do you know] how many months a year has."),
     "A year has 12 months.", "12"),
    (("How many hours are in a day?", "How many hours [does a day have|are there in a day|has a day]?",
      "A day has how many hours?", "[Tell me|Do you know] how many hours a day has."),
     "A day has 24 hours.", "24"),
    (("How many minutes are in an hour?", "How many minutes [does an hour have|are there in an hour|has an hour]?",
      "An hour has how many minutes?", "[Tell me|Do you know] how many minutes an hour has."),
     "An hour has 60 minutes.", "60"),
    (("How many days are in a year?", "How many days [does a year have|are there in a year|has a year]?",
      "A year has how many days?", "[Tell me|Do you know] how many days a year has."),
     "A year has 365 days.", "365"),
    (("How many seconds are in a minute?", "How many seconds [does a minute have|are there in a minute|has a minute]?",
      "A minute has how many seconds?", "[Tell me|Do you know] how many seconds a minute has."),
     "A minute has 60 seconds.", "60"),
)  # fmt: skip
_COLOUR = (
    "What colour is {0}?",
    "[What|Which] [colour|color] [is {0}|does {0} have]?",
    "[Tell me|Name|Say] the [colour|color] of {0}.",
    "[What is|What's|Which is] the [colour|color] of {0}?",
    "Do you know [what|which] colour {0} [is|has]?",
    "The colour of {0} is [what|which]?",
    "Tell me [what|which] colour {0} [is|has].",
)
_MIX = (
    "What do you get when you mix {0} and {1}?",
    "[What|Which] colour do {0} and {1} [make|give][?| together?]",
    "Mix {0} [and|with] {1}. [What|Which] colour is it?",
    "[What|Which] colour do [you|I|we] get from {0} and {1}?",
    "What do {0} and {1} make[?| together?]",
    "If [I|you|we] mix {0} [with|and] {1}, [what|which] colour do [I|you|we] get?",
    "What is {0} mixed with {1}?",
    "[What|Which] colour is {0} mixed with {1}?",
)
_ANIMAL = {
    "sound": (
        ("What sound does {0} make?", "[What|Which] [sound|noise] does {0} make?", "How does {0} [sound|talk]?",
         "[Tell me|Name] the [sound|noise] [that {0} makes|of {0}].", "What does {0} say?",
         "[What|Which] is the sound of {0}?",
         "Tell me [what|which] sound {0} makes."),
        "{1} {2}.",
    ),
    "young": (
        ("What is a young {3} called?", "What is a [baby|young] {3} called?",
         "What do [you|we|people] call a [baby|young] {3}?",
         "[What is|What's] the [name|word] for a [young|baby] {3}?", "Name the [young|baby] of {0}.",
         "How do [you|we] call the [baby|young] of {0}?", "What is the [baby|young] of {0} called?",
         "[How|What] is the baby of {0} [called|named]?", "Tell me what a [baby|young] {3} is called."),
        "A young {3} is called {2}.",
    ),
    "home": (
        ("Where does {0} live?", "Where does {0} [sleep|stay|have its home]?", "[What|Where] is the home of {0}?",
         "Where [can|do] I find {0}?", "[Tell me|Do you know] where {0} [lives|sleeps].",
         "In [which|what] place does {0} [live|sleep]?",
         "[What|Which] place does {0} [live|sleep] in?"),
        "{1} lives in {2}.",
    ),
    "food": (
        ("What does {0} eat?", "What [do|can|should] [you|I] feed {0}?",
         "[Tell me|Do you know] what {0} [eats|likes to eat].",
         "[What|Which] food does {0} [like|eat|need]?", "What is the food of {0}?", "What does {0} like to eat?",
         "What do I give {0} to eat?"),
        "{1} eats {2}.",
    ),
    "legs": (
        ("How many legs does {0} have?", "How many legs has {0}[ got|]?",
         "[Tell me|Do you know] how many legs {0} has.",
         "[What is|Tell me] the number of legs of {0}.", "{1} has how many legs?", "Count the legs of {0}.",
         "On how many legs does {0} walk?"),
        "{1} has {2} legs.",
    ),
}  # fmt: skip

_LEADS = (
    "Please tell me: ", "Hi! ", "Hello! ", "Quick question: ", "I want to know: ", "Hey, ", "Tell me, ", "Okay, ",
    "A question: ", "One more question: ", "And now: ", "So, ", "Please, ", "Can you help me? ", "I wonder: ",
)  # fmt: skip
_TAILS = (" Please.", " Thanks!", " I want to know.", " Do you know?", " Thank you.", " It is for school.")


def dressed(rng: Random, question: str) -> str:
    """The question as people type it: with a lead or a tail, in small letters, without its mark."""
    style = rng.random()
    if style < 0.15:
        return rng.choice(_LEADS) + question
    if style < 0.22:
        return question + rng.choice(_TAILS)
    if style < 0.30:
        return question.lower()
    if style < 0.36:
        return question.rstrip("?.")
    if style < 0.40:
        return question.lower().rstrip("?.")
    return question


def _ask(rng: Random, topic: str, question: str, answer: str, key: str) -> Sample:
    thought = f"This is about {topic}. The answer is {key.removeprefix('is ')}."
    return exchange("facts", dressed(rng, question), answer, thought, [rf"\b{key}\b"])


def capital(rng: Random, split: Split) -> Sample:
    """A country's capital, or a capital's country."""
    country, city = rng.choice(list(words.CAPITALS.items()))
    if rng.random() < 0.7:
        question = phrase(rng, split, _CAPITAL).format(country)
        return _ask(rng, "capitals", question, f"The capital of {country} is {city}.", city)
    question = phrase(rng, split, _COUNTRY).format(city)
    return _ask(rng, "capitals", question, f"{city} is the capital of {country}.", country)


def arithmetic(rng: Random, split: Split) -> Sample:
    """A sum of numbers up to 10, or the difference that undoes it."""
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    templates, word, first, result = rng.choice(((_SUM, "plus", a, a + b), (_DIFFERENCE, "minus", a + b, a)))
    question = phrase(rng, split, templates).format(first, b)
    return _ask(rng, "numbers", question, f"{first} {word} {b} is {result}.", f"is {result}")


def opposite(rng: Random, split: Split) -> Sample:
    """The opposite of a word."""
    pair = list(rng.choice(list(words.OPPOSITES.items())))
    rng.shuffle(pair)
    question = phrase(rng, split, _OPPOSITE).format(pair[0])
    return _ask(rng, "opposites", question, f"The opposite of {pair[0]} is {pair[1]}.", pair[1])


def calendar(rng: Random, split: Split) -> Sample:
    """Days and months."""
    kind = rng.random()
    if kind < 0.15:
        month = rng.randrange(12)
        question, answer = phrase(rng, split, _LENGTH), f"{words.MONTHS[month]} has {words.MONTH_LENGTHS[month]} days."
        return _ask(rng, "the calendar", question.format(words.MONTHS[month]), answer, str(words.MONTH_LENGTHS[month]))
    if kind < 0.3:
        month = rng.randrange(12)
        question = phrase(rng, split, _ORDINAL).format(words.ORDINALS[month])
        answer = f"The {words.ORDINALS[month]} month of the year is {words.MONTHS[month]}."
        return _ask(rng, "the calendar", question, answer, words.MONTHS[month])
    if kind < 0.4:
        templates, answer, key = rng.choice(_COUNTS)
        return _ask(rng, "time", phrase(rng, split, templates), answer, key)
    names, unit = rng.choice(((words.DAYS, "day"), (words.MONTHS, "month")))
    i = rng.randrange(len(names))
    asked, word, step = rng.choice(((_AFTER, "after", 1), (_BEFORE, "before", -1)))
    found = names[(i + step) % len(names)]
    question = phrase(rng, split, asked).format(names[i], unit)
    return _ask(rng, "the calendar", question, f"The {unit} {word} {names[i]} is {found}.", f"is {found}")


def colour(rng: Random, split: Split) -> Sample:
    """The colour of a thing, or of a mixture."""
    if rng.random() < 0.25:
        pair = list(rng.choice(list(words.MIXTURES)))
        mixed = words.MIXTURES[pair[0], pair[1]]
        rng.shuffle(pair)
        question = phrase(rng, split, _MIX).format(*pair)
        return _ask(rng, "colours", question, f"{pair[0].capitalize()} and {pair[1]} make {mixed}.", mixed)
    thing, name = rng.choice(list(words.COLOURS_OF.items()))
    question = phrase(rng, split, _COLOUR).format(thing)
    return _ask(rng, "colours", question, f"{thing[0].upper()}{thing[1:]} is {name}.", name)


def animal(rng: Random, split: Split) -> Sample:
    """A simple fact on an animal."""
    name = rng.choice(list(words.ANIMALS))
    column = rng.choice(list(_ANIMAL))
    value = words.ANIMALS[name][list(_ANIMAL).index(column)]
    templates, answer = _ANIMAL[column]
    one = article(name)
    shown = article(value) if column in ("young", "home") else value
    if column == "legs" and value == "0":
        shown = "no"
    key = value if shown != "no" else "no legs"
    question = phrase(rng, split, templates).format(one, one.capitalize(), shown, name)
    text = answer.format(one, one.capitalize(), shown, name)
    return _ask(rng, "animals", question, text, key)


KINDS = ((capital, 3), (arithmetic, 10), (opposite, 2), (calendar, 3), (colour, 1), (animal, 4))


def fact(rng: Random, split: Split) -> Sample:
    """Any fact."""
    kinds, weights = zip(*KINDS, strict=True)
    return rng.choices(kinds, weights)[0](rng, split)
