"""Following a system prompt: a name, one word, a manner, a language."""

from random import Random

from . import words
from .chitchat import small_talk
from .facts import arithmetic, capital, colour, fact, opposite
from .sample import Sample, Split, exchange, fresh, phrase, under

_PLAIN = (
    "You are a helpful assistant.",
    "You are helpful.",
    "You are a friendly assistant.",
    "Be helpful and kind.",
    "You are an AI assistant.",
    "Answer the user's questions.",
    "You are a helpful, honest assistant.",
    "Help the user.",
)
_NAME = (
    "You are {0}.",
    "Your name is {0}.",
    "You are called {0}.",
    "You are an assistant named {0}.",
    "You are {0}, a helpful assistant.",
    "Act as {0}.",
    "Your name is {0}. Be helpful.",
    "You are a helpful assistant called {0}.",
    "The assistant's name is {0}.",
)
_WHO = (
    "What is your name?",
    "What's your name?",
    "Who are you?",
    "Tell me your name.",
    "How are you called?",
    "what is your name",
    "May I ask your name?",
    "Who am I talking to?",
    "Hello, who are you?",
    "Your name?",
)
_ONE_WORD = (
    "Answer in one word.",
    "Answer with one word.",
    "Answer in one word only.",
    "Use one word for your answer.",
    "Reply with a single word.",
    "Reply in one word.",
    "Only answer with one word.",
    "Be brief: one word.",
    "You answer in one word.",
    "Give one-word answers.",
)
# manner: (prompts, the reply's form)
_MANNERS = (
    (("Talk like a robot.", "Speak like a robot.", "You are a robot.", "Answer like a robot."), "Beep. {0} Beep."),
    (("Be very polite.", "Answer politely.", "You are a butler.", "Speak like a butler."), "Certainly, sir. {0}"),
    (("Be cheerful.", "Answer cheerfully.", "Be very happy.", "You are a cheerful friend."), "{0} Hooray!"),
    (("End every answer with 'my friend'.", "Always say 'my friend' at the end.", "Finish each reply with 'my friend'.",
      "Close every answer with 'my friend'."), "{0} My friend."),
    (("Talk like a cat.", "You are a cat.", "Speak like a cat.", "Answer like a cat."), "Meow! {0}"),
    (("Start every answer with 'Well'.", "Always begin with 'Well'.", "Begin each reply with 'Well'.",
      "Open every answer with 'Well'."), "Well, {1}"),
)  # fmt: skip

_FOREIGN = {
    "German": (
        ("Answer in German.", "Reply in German.", "Speak German.", "You speak German.", "Always answer in German.",
         "Use German for your answers."),
        {"Hello!": "Hallo! Wie kann ich helfen?", "How are you?": "Mir geht es gut, danke!",
         "Thank you!": "Gern geschehen!", "Goodbye!": "Auf Wiedersehen!", "Good morning!": "Guten Morgen!"},
        "Die Antwort ist {0}.", "Die Hauptstadt ist {0}.",
    ),
    "French": (
        ("Answer in French.", "Reply in French.", "Speak French.", "You speak French.", "Always answer in French.",
         "Use French for your answers."),
        {"Hello!": "Bonjour ! Comment puis-je vous aider ?", "How are you?": "Je vais bien, merci !",
         "Thank you!": "De rien !", "Goodbye!": "Au revoir !", "Good morning!": "Bonjour !"},
        "La réponse est {0}.", "La capitale est {0}.",
    ),
    "Spanish": (
        ("Answer in Spanish.", "Reply in Spanish.", "Speak Spanish.", "You speak Spanish.", "Always answer in Spanish.",
         "Use Spanish for your answers."),
        {"Hello!": "¡Hola! ¿Cómo puedo ayudar?", "How are you?": "Estoy bien, ¡gracias!",
         "Thank you!": "¡De nada!", "Goodbye!": "¡Adiós!", "Good morning!": "¡Buenos días!"},
        "La respuesta es {0}.", "La capital es {0}.",
    ),
}  # fmt: skip


def _name(rng: Random, split: Split) -> Sample:
    name = fresh(rng, split, lambda r: r.choice(words.NAMES) if r.random() < 0.5 else words.made_up(r))
    thought = f"My name is {name}."
    sample = exchange("system", phrase(rng, split, _WHO), f"I am {name}.", thought, [name])
    return under(phrase(rng, split, _NAME).format(name), sample)


def _one_word(rng: Random, split: Split) -> Sample:
    sample = rng.choice((capital, arithmetic, opposite, colour))(rng, split)
    key = sample.accept[0].removeprefix(r"\b").removesuffix(r"\b").removeprefix("is ")
    key = key[0].upper() + key[1:]
    question = sample.turns[0].text
    short = exchange("system", question, f"{key}.", f"In one word: {key}.", [rf"^{key}\.?$"])
    return under(phrase(rng, split, _ONE_WORD), short)


def _manner(rng: Random, split: Split) -> Sample:
    prompts, form = rng.choice(_MANNERS)
    sample = rng.choice((fact, small_talk))(rng, split)
    said = sample.turns[-1].text
    reply = form.format(said, said if said.startswith("I ") else said[0].lower() + said[1:])
    marks = [word for word in ("beep", "certainly", "hooray", "my friend", "meow", "well") if word in form.lower()]
    styled = exchange("system", sample.turns[0].text, reply, sample.turns[-1].thought, [*sample.accept, *marks])
    return under(phrase(rng, split, prompts), styled)


def _language(rng: Random, split: Split) -> Sample:
    prompts, talk, answer, city = _FOREIGN[rng.choice(list(_FOREIGN))]
    system = phrase(rng, split, prompts)
    if rng.random() < 0.5:
        said = rng.choice(list(talk))
        return under(system, exchange("system", said, talk[said], "In that language.", [talk[said].split()[0]]))
    maker, form = rng.choice(((arithmetic, answer), (capital, city)))
    sample = maker(rng, split)
    while "is the capital of" in sample.turns[-1].text:
        sample = maker(rng, split)
    key = sample.accept[0].removeprefix(r"\b").removesuffix(r"\b").removeprefix("is ")
    lead = form.split("{")[0].strip()
    return under(system, exchange("system", sample.turns[0].text, form.format(key), f"It is {key}.", [lead, key]))


def system(rng: Random, split: Split) -> Sample:
    """A question under a system prompt that changes the answer."""
    return rng.choices((_name, _one_word, _manner, _language), (3, 3, 3, 2))[0](rng, split)


def plain_system(rng: Random, sample: Sample) -> Sample:
    """The sample under a system prompt that changes nothing."""
    return under(rng.choice(_PLAIN), sample)
