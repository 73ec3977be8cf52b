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
    "Your name is {0}[.|. Be helpful.|. You are helpful.]",
    "You are called {0}[.|. Be kind.]",
    "You are [an|a helpful|a friendly] assistant [named|called] {0}.",
    "You are {0}, a [helpful|friendly|kind] [assistant|robot|helper].",
    "[Act|Speak|Answer] as {0}.",
    "[The|This] assistant's name is {0}.",
    "[The|This] assistant is [called|named] {0}.",
    "Your [new name|name today] is {0}.",
    "[From now on you are|Play the role of|Pretend to be|You play] {0}.",
    "[They call you|People call you|We call you] {0}.",
)
_WHO = (
    "What is your name?",
    "[What's|Tell me|Say] your name[?|.]",
    "Who are you[?| please?]",
    "[How|What] are you called?",
    "what is your name",
    "May I ask your name?",
    "[Who|Whom] am I talking to?",
    "[Hello, who|Hi, who|Hey, who] are you?",
    "Your name?",
    "Do you have a name?",
    "Can you tell me [your name|who you are]?",
    "[Tell|Please tell] me who you are.",
)
_ONE_WORD = (
    "Answer in one word.",
    "[Answer|Reply|Respond|Speak] [in|with] [one|a single] word[.| only.]",
    "[Always|Please|You] [answer|reply|respond] [in|with] one word[.| only.]",
    "Use [one|a single|only one] word for [your answer|your answers|each answer|every answer].",
    "[Only|Just] [answer|reply] with [one|a single] word.",
    "[Be brief|Be short]: [one word|a single word|one word only].",
    "Give [one-word answers|one word answers|answers of one word].",
    "[Your answers are|Each answer is|Every answer is] one word[.| long.]",
    "You are a helpful assistant. [Answer|Reply] [in|with] one word.",
    "One word [answers|answers only|per answer|only].",
)
# manner: (prompts, the reply's form)
_MANNERS = (
    (("Talk like a robot.", "[Speak|Answer|Reply|Sound|Act] like a robot.", "You [are|play|sound like] a robot.",
      "[Always|Please] [talk|speak|answer] like a robot.", "You [talk|speak|answer] like a robot.",
      "[Talk|Speak|Answer|Act] as a robot."), "Beep. {0} Beep."),
    (("Be very polite.", "[Answer|Speak|Reply|Talk] [very |]politely.", "You are a [butler|polite butler|good butler].",
      "[Speak|Talk|Answer|Reply|Act] like a butler.", "Be [polite|a butler|as polite as a butler].",
      "[Always|Please] be [very |]polite."), "Certainly, sir. {0}"),
    (("Be cheerful.", "[Answer|Speak|Reply|Talk] cheerfully.", "Be [very happy|very cheerful|happy|a cheerful friend].",
      "You are [a cheerful friend|cheerful|very cheerful|a happy friend|very happy].",
      "[Always|Please] be [cheerful|happy]."), "{0} Hooray!"),
    (("End every answer with 'my friend'.", "[Always|Please] say 'my friend' at the end.",
      "[End|Finish|Close] [each|every|your] [reply|answer|message] with 'my friend'.",
      "[Add|Put|Write] 'my friend' [to|at] the end[.| of every answer.| of each reply.]",
      "Always [end|finish|close] with 'my friend'."), "{0} My friend."),
    (("Talk like a cat.", "You [are|play|sound like] a cat.", "[Speak|Answer|Reply|Sound|Act] like a cat.",
      "[Always|Please] [talk|speak|answer] like a cat.",
      "You [talk|speak|answer] like a cat.", "[Talk|Speak|Answer|Act] as a cat."), "Meow! {0}"),
    (("Start every answer with 'Well'.", "Always [begin|start|open] with 'Well'.",
      "[Start|Begin|Open] [each|every|your] [reply|answer|message] with 'Well'.",
      "[Always|Please] say 'Well' [first|at the start].",
      "[Put|Write|Say] 'Well' at the [start|beginning] of [every answer|each reply].",
      "[Your answers|All answers|Your replies] [begin|start] with 'Well'."), "Well, {1}"),
)  # fmt: skip


def _speak(language: str) -> tuple[str, ...]:
    patterns = (
        "Answer in {0}.",
        "[Reply|Respond|Write|Speak|Talk|Answer] in {0}[.| only.| please.]",
        "[Speak|Use|Write] {0}[.| only.| for your answers.| in your answers.]",
        "You [speak|only speak|answer in|reply in|write in|talk in] {0}.",
        "[Always|Please|Only] [answer|reply|speak|respond|write] in {0}.",
        "[Your language is|The language is|The user speaks|We speak|The user reads only] {0}.",
        "You are a {0} assistant[.|. Speak {0}.|. Answer in {0}.]",
        "[All answers are|Every answer is|Your answers are] in {0}.",
    )
    return tuple(pattern.replace("{0}", language) for pattern in patterns)


_FOREIGN = {
    "German": (
        {"Hello!": "Hallo! Wie kann ich helfen?", "How are you?": "Mir geht es gut, danke!",
         "Thank you!": "Gern geschehen!", "Goodbye!": "Auf Wiedersehen!", "Good morning!": "Guten Morgen!"},
        "Die Antwort ist {0}.", "Die Hauptstadt ist {0}.",
    ),
    "French": (
        {"Hello!": "Bonjour ! Comment puis-je vous aider ?", "How are you?": "Je vais bien, merci !",
         "Thank you!": "De rien !", "Goodbye!": "Au revoir !", "Good morning!": "Bonjour !"},
        "La réponse est {0}.", "La capitale est {0}.",
    ),
    "Spanish": (
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
    language = rng.choice(list(_FOREIGN))
    talk, answer, city = _FOREIGN[language]
    system = phrase(rng, split, _speak(language))
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
