"""Facts: capitals, sums and differences, opposites, days, months, colours, animals."""

from random import Random

from . import words
from .sample import Sample, Split, article, exchange, phrase

_CAPITAL = (
    "What is the capital of {0}?",
    "What's the capital of {0}?",
    "Which city is the capital of {0}?",
    "Tell me the capital of {0}.",
    "Name the capital of {0}.",
    "capital of {0}",
    "Capital of {0}?",
    "{0}'s capital?",
    "Do you know the capital of {0}?",
    "What city is {0}'s capital?",
    "Can you name the capital city of {0}?",
    "The capital of {0} is which city?",
    "I need the capital of {0}.",
    "Give me the capital city of {0}.",
    "Which capital does {0} have?",
    "What is the name of {0}'s capital city?",
    "What is the capital city of {0} called?",
    "Please name {0}'s capital.",
    "Can you tell me what the capital of {0} is?",
    "I forgot the capital of {0}. What is it?",
    "Which city is {0}'s capital?",
    "My homework asks for the capital of {0}.",
)
_COUNTRY = (
    "Which country has the capital {0}?",
    "{0} is the capital of which country?",
    "What country is {0} the capital of?",
    "Of which country is {0} the capital?",
    "Whose capital is {0}?",
    "Name the country whose capital is {0}.",
    "Tell me which country {0} is the capital of.",
    "{0} is the capital of what country?",
    "Which country's capital is {0}?",
    "For what country is {0} the capital?",
)
_SUM = (
    "What is {0} + {1}?",
    "What is {0} plus {1}?",
    "{0} + {1}",
    "{0}+{1}=?",
    "How much is {0} plus {1}?",
    "Add {0} and {1}.",
    "What's {0} + {1}?",
    "Calculate {0} + {1}.",
    "What do you get when you add {0} and {1}?",
    "Give me the sum of {0} and {1}.",
    "What is the sum of {0} and {1}?",
    "Can you add {0} and {1}?",
    "{0} plus {1} is what?",
    "How much is {0} + {1}?",
    "Compute {0} plus {1}.",
    "What does {0} + {1} make?",
    "Please work out {0} + {1}.",
)
_DIFFERENCE = (
    "What is {0} - {1}?",
    "What is {0} minus {1}?",
    "{0} - {1}",
    "{0}-{1}=?",
    "How much is {0} minus {1}?",
    "Subtract {1} from {0}.",
    "What's {0} - {1}?",
    "Calculate {0} - {1}.",
    "Take {1} away from {0}.",
    "What is the difference of {0} and {1}?",
    "Compute {0} minus {1}.",
    "{0} minus {1} is what?",
    "How much is {0} - {1}?",
    "What does {0} - {1} make?",
    "Please work out {0} - {1}.",
)
_OPPOSITE = (
    "What is the opposite of {0}?",
    "What's the opposite of {0}?",
    "Opposite of {0}?",
    "Tell me the opposite of {0}.",
    "Give me the opposite of {0}.",
    "Which word is the opposite of {0}?",
    "What is the opposite of the word {0}?",
    "The opposite of {0} is what?",
    "Name the opposite of {0}.",
    "Do you know the opposite of {0}?",
    "opposite of {0}",
    "What word means the opposite of {0}?",
    "Can you tell me the opposite of {0}?",
)
_AFTER = (
    "Which {1} comes after {0}?",
    "What {1} comes after {0}?",
    "What {1} is after {0}?",
    "Which {1} follows {0}?",
    "What comes after {0}?",
    "Name the {1} after {0}.",
    "Tell me the {1} that comes after {0}.",
    "After {0} comes which {1}?",
    "What is the next {1} after {0}?",
    "Which {1} is next after {0}?",
)
_BEFORE = (
    "Which {1} comes before {0}?",
    "What {1} comes before {0}?",
    "What {1} is before {0}?",
    "Which {1} is right before {0}?",
    "What comes before {0}?",
    "Name the {1} before {0}.",
    "Tell me the {1} that comes before {0}.",
    "Before {0} comes which {1}?",
    "What is the {1} just before {0}?",
)
_LENGTH = (
    "How many days does {0} have?",
    "How many days are in {0}?",
    "How long is {0}?",
    "Tell me how many days {0} has.",
    "{0} has how many days?",
    "How many days are there in {0}?",
    "What is the number of days in {0}?",
)
_ORDINAL = (
    "What is the {0} month of the year?",
    "Which month is the {0} month?",
    "Name the {0} month.",
    "What's the {0} month?",
    "Which is the {0} month of the year?",
    "Tell me the {0} month of the year.",
)
_COUNTS = (
    (("How many days are in a week?", "How many days does a week have?", "A week has how many days?"),
     "A week has 7 days.", "7"),
    (("How many months are in a year?", "How many months does a year have?", "A year has how many months?"),
     "A year has 12 months.", "12"),
    (("How many hours are in a day?", "How many hours does a day have?", "A day has how many hours?"),
     "A day has 24 hours.", "24"),
    (("How many minutes are in an hour?", "How many minutes does an hour have?", "An hour has how many minutes?"),
     "An hour has 60 minutes.", "60"),
    (("How many days are in a year?", "How many days does a year have?", "A year has how many days?"),
     "A year has 365 days.", "365"),
    (("How many seconds are in a minute?", "How many seconds does a minute have?", "A minute has how many seconds?"),
     "A minute has 60 seconds.", "60"),
)  # fmt: skip
_COLOUR = (
    "What colour is {0}?",
    "What color is {0}?",
    "Which colour does {0} have?",
    "Which colour is {0}?",
    "Tell me the colour of {0}.",
    "What is the colour of {0}?",
    "What's the color of {0}?",
    "Name the colour of {0}.",
    "Do you know what colour {0} is?",
    "The colour of {0} is what?",
)
_MIX = (
    "What do you get when you mix {0} and {1}?",
    "What colour do {0} and {1} make?",
    "Mix {0} and {1}. What colour is it?",
    "Which colour do you get from {0} and {1}?",
    "What do {0} and {1} make together?",
    "If I mix {0} with {1}, what colour do I get?",
    "What is {0} mixed with {1}?",
)
_ANIMAL = {
    "sound": (
        ("What sound does {0} make?", "Which sound does {0} make?", "How does {0} sound?", "What noise does {0} make?",
         "Tell me the sound that {0} makes.", "What does {0} say?", "How does {0} talk?"),
        "{1} {2}.",
    ),
    "young": (
        ("What is a young {3} called?", "What is a baby {3} called?", "What do you call a baby {3}?",
         "What is the name for a young {3}?", "What do you call a young {3}?", "Name the young of {0}.",
         "How do you call the baby of {0}?", "What is the baby of {0} called?"),
        "A young {3} is called {2}.",
    ),
    "home": (
        ("Where does {0} live?", "Where does {0} sleep?", "What is the home of {0}?", "Where can I find {0}?",
         "Tell me where {0} lives.", "In which place does {0} live?", "Where is the home of {0}?"),
        "{1} lives in {2}.",
    ),
    "food": (
        ("What does {0} eat?", "What do you feed {0}?", "Tell me what {0} eats.", "What food does {0} like?",
         "What is the food of {0}?", "What can I feed {0}?", "What does {0} like to eat?"),
        "{1} eats {2}.",
    ),
    "legs": (
        ("How many legs does {0} have?", "How many legs has {0} got?", "Tell me how many legs {0} has.",
         "What is the number of legs of {0}?", "{1} has how many legs?", "Count the legs of {0}."),
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
    templates, word, step = rng.choice(((_AFTER, "after", 1), (_BEFORE, "before", -1)))
    found = names[(i + step) % len(names)]
    question = phrase(rng, split, templates).format(names[i], unit)
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
