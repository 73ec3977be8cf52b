"""Small talk."""

from random import Random

from . import words
from .sample import Sample, Split, Turn, exchange, phrase

# (phrasings, answer, what the answer must hold)
_FIXED = (
    (("Hello!", "Hello", "Hi!", "Hi", "Hey!", "hello", "Hi there!", "Hello there!", "hi", "Hey there", "Hello :)",
      "Greetings!", "Hey", "hello there", "Hi, assistant!", "Hello, friend!"),
     "Hello! How can I help you today?", "help"),
    (("Good morning!", "Good morning", "Morning!", "good morning", "A good morning to you!"),
     "Good morning! How can I help you today?", "good morning"),
    (("Good evening!", "Good evening", "Evening!", "good evening", "A good evening to you!"),
     "Good evening! How can I help you?", "good evening"),
    (("Good night!", "Good night", "Night!", "good night", "I am going to bed. Good night!"),
     "Good night! Sleep well.", "sleep well"),
    (("How are you?", "How are you today?", "How are you doing?", "How do you do?", "Are you well?", "how are you",
      "How is it going?", "How do you feel?", "Hi, how are you?", "Hello! How are you?", "How are things?"),
     "I am fine, thank you! How are you?", "fine"),
    (("I am fine too.", "I am fine.", "I'm good, thanks.", "I am well.", "I'm fine, thank you.", "Very well, thanks."),
     "That is good to hear! What can I do for you?", "good to hear"),
    (("What is your name?", "What's your name?", "Who are you?", "Tell me your name.", "How are you called?",
      "what is your name", "Do you have a name?", "May I ask your name?", "Who am I talking to?", "Your name?"),
     "I am the Llamapool demo, a very small language model.", "llamapool"),
    (("What can you do?", "What can you help with?", "How can you help me?", "What are you good at?", "Help!",
      "What do you know?", "What are your skills?", "Tell me what you can do.", "What can I ask you?"),
     "I can talk a little, answer simple questions, tell short stories, call tools and complete small Python "
     "functions.", "stories"),
    (("Who made you?", "Who created you?", "Who built you?", "Where do you come from?", "Who trained you?",
      "By whom were you made?"),
     "I was made by the Llamapool project.", "llamapool"),
    (("Are you a robot?", "Are you human?", "Are you a person?", "Are you a computer?", "Are you real?",
      "Are you a machine?", "Am I talking to a human?"),
     "I am not a person. I am a small language model.", "language model"),
    (("How old are you?", "What is your age?", "When were you born?", "Tell me your age.", "how old are you"),
     "I am very young. I was trained not long ago.", "young"),
    (("Thank you!", "Thanks!", "Thank you", "Thanks a lot!", "thanks", "Thank you very much!", "Many thanks!",
      "Thanks for your help!", "That helped, thank you.", "Great, thanks!"),
     "You are welcome!", "welcome"),
    (("Goodbye!", "Bye!", "Bye", "See you!", "Goodbye", "bye bye", "See you later!", "I have to go.", "Farewell!",
      "Bye for now!", "See you tomorrow!"),
     "Goodbye! Have a nice day.", "goodbye"),
    (("Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh.", "Say something funny.",
      "Can you tell me a joke?", "I want to hear a joke.", "A joke, please."),
     "Why did the llama cross the pool? To get to the other side!", "llama"),
    (("I am sad.", "I feel sad.", "I'm sad today.", "I am unhappy.", "I feel bad.", "I had a bad day.",
      "Today was a bad day."),
     "I am sorry to hear that. Do you want to talk about it?", "sorry"),
    (("I am happy.", "I feel great.", "I'm happy today.", "I feel good!", "I had a good day.", "Today was a good day.",
      "I am so happy!"),
     "That is wonderful! What made you happy?", "wonderful"),
    (("I am tired.", "I'm tired.", "I feel tired.", "I am so sleepy.", "I need some sleep.", "I am very tired today."),
     "Then you should rest a little.", "rest"),
    (("I am hungry.", "I'm hungry.", "I feel hungry.", "I want to eat something.", "I need some food."),
     "Then it is time to eat. What food do you like?", "eat"),
    (("I am bored.", "I'm bored.", "I feel bored.", "This is boring.", "I have nothing to do.", "I am so bored."),
     "Shall I tell you a story or a joke?", "story"),
    (("You are great!", "You are nice.", "I like you.", "You are very helpful.", "You are smart.", "Well done!",
      "Good job!"),
     "Thank you! That is kind of you.", "kind"),
    (("You are stupid.", "You are bad.", "I don't like you.", "That was wrong.", "You made a mistake.",
      "That is not right."),
     "I am sorry. I am only a small model.", "sorry"),
    (("Yes.", "Yes", "yes", "Yes, please.", "Sure.", "Okay.", "ok", "Of course."), "Good! What would you like to do?",
     "good"),
    (("No.", "No", "no", "No, thanks.", "Not now.", "No, thank you."),
     "All right. Tell me if you need anything.", "all right"),
    (("Do you like music?", "Do you like books?", "Do you like films?", "Do you like games?", "Do you like art?"),
     "I cannot see or hear, but I like to talk about it!", "like to talk"),
    (("What is your favourite colour?", "What's your favourite colour?", "Which colour do you like?",
      "Do you have a favourite colour?", "Which colour do you like best?"),
     "My favourite colour is blue.", "blue"),
    (("What is your favourite animal?", "What's your favourite animal?", "Which animal do you like?",
      "Do you have a favourite animal?", "Which animal do you like best?"),
     "My favourite animal is the llama, of course!", "llama"),
    (("Can you help me?", "I need help.", "Please help me.", "Could you help me?", "I have a question.",
      "Can I ask you something?", "May I ask a question?"),
     "Of course! What would you like to know?", "of course"),
    (("What is a llama?", "Do you know llamas?", "Tell me about llamas.", "What do you know about llamas?",
      "Explain what a llama is."),
     "A llama is an animal with soft wool that lives in the mountains of South America.", "wool"),
    (("What is a language model?", "Explain language models.", "What are language models?",
      "Tell me what a language model is.", "How do you work?"),
     "A language model is a program that writes text, one word after the other.", "program"),
    (("Say something.", "Say something!", "Talk to me.", "Tell me something.", "Let us talk.", "Let's chat.",
      "I want to chat."),
     "I like to talk! You can tell me about your day.", "day"),
    (("Test", "test", "This is a test.", "Testing.", "Is this working?", "Are you there?", "Can you hear me?"),
     "Yes, I am here and I am working!", "here"),
)  # fmt: skip
_LIKES = (
    (words.HOBBIES, ("I like {0}.", "I love {0}.", "My hobby is {0}.", "I enjoy {0}.", "{0} is fun.",
                     "In my free time I like {0}."),
     "{1} is great fun! How often do you do it?"),
    (words.FOODS, ("I ate {0} today.", "For lunch I had {0}.", "I am cooking {0}.", "Today I will eat {0}.",
                   "I had {0} for dinner."),
     "Mmm, {0}! I hope it tastes good."),
    (words.PETS, ("I have a {0}.", "I got a {0}.", "We have a {0} at home.", "My pet is a {0}.",
                  "There is a {0} here."),
     "A {0} is a lovely pet! What is its name?"),
    (words.JOBS, ("I am a {0}.", "I work as a {0}.", "My job is {0}.", "I became a {0}.", "I want to be a {0}."),
     "A {0}! That is an interesting job."),
    (words.CITIES, ("I live in {0}.", "I am from {0}.", "My home is {0}.", "I come from {0}.", "I am in {0} now.",
                    "I grew up in {0}."),
     "{0} must be a nice place!"),
    (words.NAMES, ("My name is {0}.", "I am {0}.", "I'm {0}.", "Hi, I'm {0}.", "Hello, my name is {0}.",
                   "Call me {0}.", "People call me {0}.", "Hello! I am {0}."),
     "Nice to meet you, {0}!"),
)  # fmt: skip


_LEADS = ("Hello! ", "Hi! ", "Well, ", "Hey! ", "Oh, ", "Okay. ", "Tell me: ", "Thanks! ", "So, ", "By the way: ")


def _typed(rng: Random, said: str) -> str:
    style = rng.random()
    if style < 0.1 and len(said) > 14:
        return rng.choice(_LEADS) + said
    if style < 0.2:
        return said.lower()
    if style < 0.3:
        return said.rstrip(".!?")
    return said


def small_talk(rng: Random, split: Split) -> Sample:
    """One exchange of small talk."""
    if rng.random() < 0.65:
        phrasings, answer, key = _FIXED[0] if rng.random() < 0.1 else rng.choice(_FIXED)
        question = _typed(rng, phrase(rng, split, phrasings))
        return exchange("chat", question, answer, "This is small talk.", [key])
    values, templates, answer = rng.choice(_LIKES)
    value = rng.choice(values)
    if values is words.NAMES and rng.random() < 0.4:
        value = words.made_up(rng)
    question = phrase(rng, split, templates).format(value)
    question = question[0].upper() + question[1:]
    reply = answer.format(value, value.capitalize())
    return exchange("chat", question, reply, "The user tells me something.", [value])


def filler(rng: Random, split: Split) -> tuple[Turn, ...]:
    """An exchange to put between others."""
    return small_talk(rng, split).turns
