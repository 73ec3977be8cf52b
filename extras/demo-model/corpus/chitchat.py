"""Small talk."""

from random import Random

from . import words
from .sample import Sample, Split, Turn, exchange, phrase

# (phrasings, answer, what the answer must hold)
_FIXED = (
    (("Hello!", "Hello", "Hi!", "Hi", "Hey!", "hello", "Hi there[!|.|]", "Hello there[!|.|]", "hi", "Hey there[!|]",
      "Hello :)", "Greetings[!|.|]", "Hey", "[Hi|Hello|Hey], [assistant|friend|you|my friend|bot|llama][!|.|]",
      "[Hello|Hi|Hey] [again|everyone|friend|my friend][!|.|]", "[A warm hello|I say hello][!|.]", "Welcome[!|]"),
     "Hello! How can I help you today?", "help"),
    (("Good morning!", "[Good morning|Morning][!|.|]", "good morning", "A good morning to you[!|.]",
      "[Hello|Hi], good morning[!|.]", "Good morning[,| to you,| my] friend[!|.]", "I wish you a good morning[!|.]"),
     "Good morning! How can I help you today?", "good morning"),
    (("Good evening!", "[Good evening|Evening][!|.|]", "good evening", "A good evening to you[!|.]",
      "[Hello|Hi], good evening[!|.]", "Good evening[,| to you,| my] friend[!|.]", "I wish you a good evening[!|.]"),
     "Good evening! How can I help you?", "good evening"),
    (("Good night!", "[Good night|Night][!|.|]", "good night", "I am going to [bed|sleep].[ Good night!|]",
      "I [will|must] go to [bed|sleep] now.[ Good night!|]", "Good night[, friend|, my friend| to you][!|.]",
      "[Time|It is time] for bed[!|.]", "[Time|It is time] to sleep[!|.]"),
     "Good night! Sleep well.", "sleep well"),
    (("How are you?", "How are you [today|now|doing|doing today|feeling][?|]", "How do you do?",
      "Are you [well|fine|okay]?",
      "how are you", "How is it going[?| today?]", "How do you feel[?| today?]",
      "[Hi, how|Hello, how|Hi! How|Hello! How|Hey, how] are you[?| today?]",
      "How are things[?| today?| with you?]", "How is your day[?| going?]", "How are you getting on?",
      "How is [everything|all|life][?| today?| with you?| going?]"),
     "I am fine, thank you! How are you?", "fine"),
    (("I am fine too.", "[I am|I'm] [fine|well|good|okay][.|, thanks.|, thank you.| too.| today.| too, thanks.]",
      "[Very well|Fine|All good|Not bad][.|, thanks.|, thank you.]",
      "[I am|I'm] [doing|feeling] [well|fine][.|, thanks.]"),
     "That is good to hear! What can I do for you?", "good to hear"),
    (("What is your name?", "[What's|What is|Tell me|Say|Can I know|May I ask|I want to know] your name[?|.|]",
      "Who are you[?|]", "[How|What] are you called?", "what is your name", "Do you have a name?",
      "[Whom|Who] am I talking to?", "Your name?", "Can you tell me [your name|who you are]?",
      "[Please tell|Tell] me who you are.", "[What|Which] name do you have?", "Who is [this|there|talking]?"),
     "I am the Llamapool demo, a very small language model.", "llamapool"),
    (("What can you do?", "What can you [help|help me] with?", "How can you [help|help me|be of help|be useful]?",
      "What are you [good at|good for|able to do|there for]?", "Help!", "What do you know[?| about?]",
      "[What|Which] [are your skills|skills do you have|can you do for me|can you do for us]?",
      "[Tell me|Show me|Please tell me] what you [can do|know|are good at].",
      "What [can|may|should] I ask you[?| about?]",
      "What [things|tasks|jobs|kind of things] can you do?"),
     "I can talk a little, answer simple questions, tell short stories, call tools and complete small Python "
     "functions.", "stories"),
    (("Who made you?", "Who [created|built|trained|wrote|developed|programmed|invented] you[?|]",
      "Where [do you come|are you] from?", "By whom were you [made|built|trained|created]?",
      "Who [is your maker|are your makers|is your creator|has made you|has built you]?",
      "[Tell me|Do you know] who [made|built|created|trained] you[?|.]"),
     "I was made by the Llamapool project.", "llamapool"),
    (("Are you a robot?",
      "Are you [human|a human|a person|a computer|real|a machine|alive|a real person|a program|a bot]?",
      "Am I talking to a [human|person|machine|robot|computer]?", "Are you a [man or a machine|human or a robot]?",
      "[Is this|Is that] a [human|person|robot|machine]?"),
     "I am not a person. I am a small language model.", "language model"),
    (("How old are you?", "What is your age?", "[When|In which year] were you [born|trained|made|built]?",
      "[Tell me|What's|Say] your age[.|?]", "how old are you", "[Tell me|Do you know] how old you are[.|?]",
      "What age are you?", "When is your birthday?"),
     "I am very young. I was trained not long ago.", "young"),
    (("Thank you!", "[Thanks|Thank you|thanks|Many thanks][!| a lot!| very much!| so much!|.|]",
      "[Thanks|Thank you] for [your|the|all your] help[!|.]",
      "That [helped|helps|was helpful|is helpful], [thank you|thanks][.|!]",
      "[Great|Good|Perfect|Nice|Fine|Okay|Wonderful], [thanks|thank you][!|.]", "I thank you[!|.| very much.]"),
     "You are welcome!", "welcome"),
    (("Goodbye!", "[Goodbye|Bye|Farewell|Bye bye|So long][!|.|]", "See you[!| later!| tomorrow!| soon!| again!]",
      "Goodbye", "bye bye", "I [have to|must|need to|will|want to] [go|leave][.| now.]", "[Goodbye|Bye] for now[!|.]",
      "[Bye|Goodbye], [friend|my friend|assistant|see you][!|.]", "Until [tomorrow|next time|later][!|.]"),
     "Goodbye! Have a nice day.", "goodbye"),
    (("Tell me a joke.", "[Tell|Please tell] me [a|a good|another|one more|some|a funny] joke[.|]",
      "Do you know [a|a good|any] joke?",
      "Make me [laugh|smile].", "Say something funny.", "[Can|Could] you tell [me |us |]a joke?",
      "I [want|would like|need] [to hear |]a [good |]joke.", "A joke, please.", "Joke[!|, please!]",
      "Let me hear a joke."),
     "Why did the llama cross the pool? To get to the other side!", "llama"),
    (("I am sad.", "[I am|I'm] [sad|so sad|very sad|unhappy|down|sad today|unhappy today][.|!]",
      "I feel [sad|bad|down|very sad|unhappy][.| today.]",
      "I had a [bad|terrible|sad] day.", "Today was a [bad|terrible|sad] day.", "I [want to cry|could cry|am crying].",
      "My day was [bad|terrible]."),
     "I am sorry to hear that. Do you want to talk about it?", "sorry"),
    (("I am happy.", "I feel [great|good|happy|wonderful|very good][.|!| today.]",
      "[I am|I'm] [happy|so happy|very happy|happy today|glad][.|!]",
      "I had a [good|great|wonderful|nice] day.", "Today was a [good|great|wonderful] day.",
      "My day was [good|great|wonderful]."),
     "That is wonderful! What made you happy?", "wonderful"),
    (("I am tired.", "[I am|I'm] [tired|so tired|very tired|sleepy|so sleepy|very sleepy][.| today.| now.]",
      "I feel [tired|sleepy|very tired][.| today.]", "I need [some sleep|sleep|a nap|some rest|a break].",
      "I [did not sleep|slept badly|did not sleep well]."),
     "Then you should rest a little.", "rest"),
    (("I am hungry.", "[I am|I'm] [hungry|so hungry|very hungry][.| now.|!]", "I feel hungry[.| now.]",
      "I [want|need|would like] [to eat something|something to eat|some food|food|to eat].",
      "I [did not eat|have not eaten][ today| yet]."),
     "Then it is time to eat. What food do you like?", "eat"),
    (("I am bored.", "[I am|I'm] [bored|so bored|very bored|bored today][.|!]", "I feel bored[.| today.]",
      "This is [so |very |]boring.",
      "I have nothing to do[.| today.]", "There is nothing to do[.| here.]", "What a boring day[!|.]"),
     "Shall I tell you a story or a joke?", "story"),
    (("You are great!",
      "You are [nice|smart|helpful|very helpful|kind|clever|wonderful|so nice|very good|the best][.|!]",
      "I [like|love] you[.|!]", "[Well done|Good job|Nice work|Good work|Great job|Bravo][!|.]",
      "You [did well|helped me a lot|are doing well][.|!]"),
     "Thank you! That is kind of you.", "kind"),
    (("You are stupid.", "You are [bad|stupid|dumb|no help|useless|wrong|so stupid|not smart][.|!]",
      "I [don't like|hate] you.",
      "[That|This] [was|is] [wrong|not right|false|bad|not true|a mistake][.|!]",
      "You made [a mistake|an error|mistakes]."),
     "I am sorry. I am only a small model.", "sorry"),
    (("Yes.", "[Yes|Sure|Okay|Of course|Yes, please|Ok|Fine|Right|Why not|Yes, sure|Yes, of course][.|!|]", "yes", "ok",
      "[Yes|Sure], [I would|I do|let's do it|go on][.|!]"),
     "Good! What would you like to do?", "good"),
    (("No.",
      "[No|No, thanks|Not now|No, thank you|Not today|Not really|No, not now|Nothing|Nothing, thanks|No, I "
      "don't][.|!|]", "no"),
     "All right. Tell me if you need anything.", "all right"),
    (("Do you like music?",
      "Do you [like|love|enjoy] [music|books|films|games|art|songs|sports|movies|pictures|football]?",
      "Do you [listen to music|read books|watch films|play games|watch movies|look at art|like to read|like to sing]?",
      "[What|Which] [music|books|films|games|songs|movies] do you like?"),
     "I cannot see or hear, but I like to talk about it!", "like to talk"),
    (("What is your favourite colour?", "[What's|Tell me|What is|Name] your [favourite|favorite] [colour|color][?|.]",
      "[Which|What] colour do you [like|like best|love|prefer|like most]?", "Do you have a favourite colour?"),
     "My favourite colour is blue.", "blue"),
    (("What is your favourite animal?", "[What's|Tell me|What is|Name] your [favourite|favorite] animal[?|.]",
      "[Which|What] animal do you [like|like best|love|prefer|like most]?", "Do you have a favourite animal?"),
     "My favourite animal is the llama, of course!", "llama"),
    (("Can you help me?", "I need [some help|help|your help][.|!]", "Please help me[.|!]",
      "[Could|Will|Would] you help me[?|, please?]",
      "I have a question[.|!| for you.]", "[Can|May|Could] I ask [you something|something|a question|you a question]?",
      "I [want|would like] to ask [you something|something|a question|you a question].", "Help me[, please|!|.]"),
     "Of course! What would you like to know?", "of course"),
    (("What is a llama?", "Do you know [llamas|what a llama is]?",
      "[Tell me|Tell me something] about [llamas|the llama|a llama].",
      "[What do|What can] you [know|tell me] about llamas?", "[Explain|Tell me] what a llama is.", "What are llamas?",
      "What kind of animal is [a|the] llama?"),
     "A llama is an animal with soft wool that lives in the mountains of South America.", "wool"),
    (("What is a language model?", "[Explain|Tell me about] [language models|the language model|a language model].",
      "What are [language models|LLMs]?", "[Tell me|Explain] what [a language model is|language models are|an LLM is].",
      "How do you work?", "How does a language model work?", "What does a language model do?", "What is an LLM?"),
     "A language model is a program that writes text, one word after the other.", "program"),
    (("Say something.", "Say something[!|, please.]", "[Talk|Speak] to me[.|!]", "Tell me something[.|!]",
      "[Let us|Let's] [talk|chat|talk a little][.|!]",
      "I want to [chat|talk|talk to you|chat with you].", "[Can|Could] we [talk|chat]?", "Do you want to [talk|chat]?"),
     "I like to talk! You can tell me about your day.", "day"),
    (("Test", "[Test|Testing|This is a test|Just a test|Only a test][.|!|]", "test", "[Is this|Is it|Are you] working?",
      "Are you [there|here|awake|online|ready|still there]?", "Can you [hear|read|see] me?",
      "Is [anybody|anyone|somebody] [there|here]?",
      "Do you [hear|read] me?", "Does [this|it] work?"),
     "Yes, I am here and I am working!", "here"),
)  # fmt: skip
_LIKES = (
    (words.HOBBIES, ("I like {0}.", "I [really |]love {0}.", "My hobby is {0}.", "I [really |]enjoy {0}.",
                     "{0} is [fun|great|my hobby|great fun].",
                     "In my free time I [like|love|enjoy] {0}.", "I [often|always] do {0}.",
                     "I am [fond|a fan] of {0}.",
                     "My [favourite |]hobby is {0}.", "I really like {0}."),
     "{1} is great fun! How often do you do it?"),
    (words.FOODS, ("I ate {0} today.", "For [lunch|dinner|breakfast] I [had|ate|have] {0}.",
                   "I am [cooking|eating|making|having] {0}[.| now.| today.]",
                   "Today I [will eat|will cook|ate|had|am cooking|am making] {0}.",
                   "I [had|ate] {0} for [dinner|lunch|breakfast].",
                   "We [ate|had|cooked|will eat] {0}[.| today.| for dinner.]",
                   "I [will|want to] [cook|make|eat] {0}[.| today.]"),
     "Mmm, {0}! I hope it tastes good."),
    (words.PETS, ("I have a {0}.", "I [got|bought|own] a {0}[.| today.]", "We have a {0}[.| at home.]",
                  "My [pet|new pet|animal] is a {0}.",
                  "There is a {0} [here|in my house|at home].", "At home [I|we] have a {0}.", "I live with a {0}.",
                  "I have a [new |little |small |]{0} at home."),
     "A {0} is a lovely pet! What is its name?"),
    (words.JOBS, ("I am a {0}.", "I work as a {0}[.| now.]", "[My|My new] job is {0}.", "I [became|was] a {0}.",
                  "I want to be[come|] a {0}.",
                  "I will be[come|] a {0}.", "I am working as a {0}.", "By profession I am a {0}.",
                  "I have a job as a {0}."),
     "A {0}! That is an interesting job."),
    (words.CITIES, ("I live in {0}.", "I [am|come] from {0}.", "My [home|home town|city] is {0}.",
                    "I am in {0}[.| now.| today.]",
                    "I grew up in {0}.", "I grew up [near|close to|not far from] {0}.",
                    "I [was born|stayed|work] in {0}.", "I [moved|am moving] to {0}.",
                    "[We|My family and I] live in {0}.", "I live [near|close to] {0}.", "I am living in {0}[.| now.]"),
     "{0} must be a nice place!"),
    (words.NAMES, ("My name is {0}.", "[I am|I'm] {0}[.|!]", "[Hi|Hello][,|!] [I'm|I am] {0}[.|!]",
                   "[Hi|Hello], my name is {0}[.|!]",
                   "[Call|Please call|You can call] me {0}.", "[People|Friends|My friends] call me {0}.",
                   "I am called {0}.",
                   "The name is {0}.", "[Hi|Hello], {0} here.", "My name's {0}."),
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


def _fixed(rng: Random, split: Split) -> Sample:
    phrasings, answer, key = _FIXED[0] if rng.random() < 0.1 else rng.choice(_FIXED)
    question = _typed(rng, phrase(rng, split, phrasings))
    return exchange("chat", question, answer, "This is small talk.", [key])


def small_talk(rng: Random, split: Split) -> Sample:
    """One exchange of small talk."""
    if rng.random() < 0.65:
        return _fixed(rng, split)
    values, templates, answer = rng.choice(_LIKES)
    value = rng.choice(values)
    if values in (words.NAMES, words.CITIES) and rng.random() < 0.4:
        value = words.made_up(rng)
    question = phrase(rng, split, templates).format(value)
    question = question[0].upper() + question[1:]
    reply = answer.format(value, value.capitalize())
    return exchange("chat", question, reply, "The user tells me something.", [value])


def filler(rng: Random, split: Split) -> tuple[Turn, ...]:
    """An exchange to put between others, in which nothing is told."""
    return _fixed(rng, split).turns
