"""Values that tools are called with: paths, commands, numbers, lists, switches, and how people say them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import words
from .common import COMMON, blend


@dataclass(frozen=True)
class Spoken:
    """An argument that is said in other words than it is written: `value` goes into the call, `said` is the user's."""

    value: object
    said: str

    def __str__(self) -> str:
        return self.said


Draw = Callable[[Random], object]


def written(value: object) -> object:
    """The argument as the call has it."""
    return value.value if isinstance(value, Spoken) else value


TOPICS = words.words_of(
    "budget report invoice meeting project holiday garden music sports weather news school health travel server "
    "backup login payment customer product team sales market design review summary letter contract picture video "
    "photo game recipe movie novel poem map train ticket hotel car engine battery solar wind water energy climate "
    "history science math physics biology language grammar chess coffee tea wine bread cheese chocolate breakfast "
    "lunch dinner party birthday wedding present dentist doctor haircut workout yoga laundry dishes vacation "
    "interview deadline release deploy test error warning cache index query table schema user admin guest config "
    "setup install upgrade network router printer monitor keyboard laptop phone tablet camera speaker headphones "
    "charger cable paint wood steel glass plastic paper pencil notebook folder archive gallery library museum theatre "
    "cinema concert festival volcano planet galaxy comet robot drone bicycle scooter tractor harbour island desert "
    "forest mountain river valley bridge tower"
)
_STEMS = words.words_of(
    "main index app config settings data notes todo readme report summary test utils server client model train setup "
    "install draft letter plan budget users orders log error access output input results photo image song list table "
    "schema query backup old new final temp example demo hello build run start script module page style"
)
_FOLDERS = words.words_of(
    "home etc var usr tmp opt src docs data lib logs bin config notes photos music projects work downloads desktop "
    "backup cache tests build models assets scripts public private shared media pictures reports"
)
_ENDINGS = words.words_of(
    "txt md py json csv log yaml toml html css js xml pdf png jpg sh conf ini sql zip cfg rs go docx xlsx pptx ts tsx "
    "java cpp c h rb php swift kt lua bak tar gz mp3 mp4 wav svg gif jpeg env lock tex odt rtf db"
)
UNITS = words.words_of(
    "metres feet inches miles kilometres yards centimetres grams kilograms pounds ounces tons litres gallons pints "
    "cups celsius fahrenheit kelvin seconds minutes hours days bytes kilobytes megabytes gigabytes watts joules "
    "calories meters kilometers centimeters millimetres millimeters liters millilitres milliliters metre foot inch "
    "mile yard gram kilogram pound ounce tonnes stones acres hectares knots quarts tablespoons teaspoons weeks months "
    "years terabytes kilowatts horsepower volts amperes pascals bars newtons degrees radians km cm mm kg mg lb lbs oz "
    "ft ml mph kmh psi kWh GB MB TB"
)
_ROOMS = words.words_of(
    "kitchen bathroom bedroom garden hall office garage cellar attic hallway nursery library basement balcony terrace "
    "lounge pantry studio workshop corridor"
)


def stem(r: Random) -> str:
    """One word in small letters, half of them made up."""
    style = r.random()
    if style < 0.22:
        return words.made_up(r, r.choice((1, 2, 2))).lower()
    if style < 0.3:
        return words.made_up_on_a_vowel(r)
    if style < 0.45:
        return blend(r)
    if style < 0.75:
        return r.choice(COMMON)
    return r.choice(r.choice((TOPICS, _STEMS, _FOLDERS, words.THINGS, words.FOODS)))


def file_name(r: Random) -> str:
    """A file's name."""
    name = stem(r) if r.random() < 0.7 else stem(r) + r.choice("_-.") + stem(r)
    if r.random() < 0.15:
        name += r.choice(("", "_", "-")) + str(r.randint(1, 2026))
    if r.random() < 0.12:
        name = name.capitalize()
    return f"{name}.{r.choice(_ENDINGS)}"


def folder(r: Random) -> str:
    """A folder's path."""
    parts = [r.choice(_FOLDERS) if r.random() < 0.6 else stem(r) for _ in range(r.choice((1, 1, 2, 2, 3)))]
    return r.choice(("/", "/", "/", "", "", "./", "~/")) + "/".join(parts) + r.choice(("", "", "", "/"))


def path(r: Random) -> str:
    """A file's path."""
    return file_name(r) if r.random() < 0.45 else folder(r).rstrip("/") + "/" + file_name(r)


def host(r: Random) -> str:
    """A host's name or its address."""
    if r.random() < 0.3:
        return ".".join(str(r.randint(0, 255)) for _ in range(4))
    name = f"{stem(r)}.{r.choice(('com', 'org', 'net', 'io', 'de', 'local', 'dev'))}"
    return name if r.random() < 0.7 else f"{stem(r)}.{name}"


def url(r: Random) -> str:
    """The address of a page."""
    name = ".".join((stem(r), r.choice(("com", "org", "net", "io", "de", "test"))))
    rest = "" if r.random() < 0.4 else "/" + "/".join(stem(r) for _ in range(r.choice((1, 1, 2))))
    return r.choice(("https://", "https://", "http://", "https://www.", "")) + name + rest


_COMMANDS = (
    "ls", "ls -la", "ls {folder}", "ls -l {folder}", "pwd", "whoami", "date", "uptime", "free -m", "ps aux",
    "top -n 1", "uname -a", "du -sh {folder}", "cat {path}", "head -n {n} {path}", "tail -n {n} {path}",
    "wc -l {path}", "env", "grep {stem} {path}", "grep -r {stem} {folder}", "find {folder} -name {file_name}",
    "echo {stem}", "mkdir {folder}", "rm {path}", "cp {path} {path}", "mv {path} {path}", "touch {path}",
    "chmod +x {path}", "python {path}", "make", "python3 -m {stem}", "pip install {stem}", "npm install {stem}",
    "npm run {stem}", "npm test", "make {stem}", "git log", "git pull", "git diff", "git add {path}",
    "git checkout {stem}", "docker ps", "docker logs {stem}", "systemctl restart {stem}", "systemctl status {stem}",
    "curl {url}", "ping {host}", "ssh {host}", "kill {n}", "sort {path}", "tar xf {path}", "which {stem}",
    "{stem} --help", "{stem} --version", "./{file_name}", "{stem} {stem}", "{stem} -{letter} {stem}", "cargo build",
    "cargo test", "go build", "pytest", "pytest {path}", "node {path}",
)  # fmt: skip


def command(r: Random) -> str:
    """A shell's command."""
    made = r.choice(_COMMANDS)
    made = made.replace("{n}", str(r.randint(1, 9999))).replace("{letter}", r.choice("abcdfhlnrvx"))
    for name, draw in (("folder", folder), ("path", path), ("file_name", file_name), ("stem", stem)):
        while f"{{{name}}}" in made:
            made = made.replace(f"{{{name}}}", draw(r), 1)
    return made.replace("{url}", url(r)).replace("{host}", host(r))


def sql(r: Random) -> str:
    """A database's query."""
    form = r.choice((
        "SELECT * FROM {0}", "SELECT {1} FROM {0}", "SELECT COUNT(*) FROM {0}", "SELECT {1}, {2} FROM {0}",
        "SELECT * FROM {0} LIMIT {3}", "SELECT * FROM {0} WHERE {1} = {3}", "SELECT * FROM {0} ORDER BY {1}",
        "DELETE FROM {0} WHERE {1} = {3}", "select * from {0}", "select {1} from {0} where {2} > {3}",
        "DROP TABLE {0}",
    ))  # fmt: skip
    return form.format(stem(r), stem(r), stem(r), r.randint(1, 999))


def code_of(r: Random) -> str:
    """What names one thing among many: a number, letters with digits, words with a dash."""
    digits = str(r.randint(1, 10 ** r.randint(1, 6)))
    letters = "".join(r.choices("ABCDEFGHIJKLMNPQRSTUVWXYZ", k=r.randint(1, 3)))
    style = r.random()
    if style < 0.25:
        return digits
    if style < 0.5:
        return letters + r.choice(("", "-", "-", "_")) + digits
    if style < 0.75:
        return stem(r) + r.choice("-_") + (str(r.randint(1, 99)) if r.random() < 0.7 else stem(r))
    if style < 0.85:
        return "".join(r.choices("0123456789abcdef", k=r.randint(4, 8)))
    return stem(r)


def term(r: Random) -> str:
    """One to four words, as one searches for them."""
    style = r.random()
    if style < 0.4:
        return stem(r)
    made = " ".join(stem(r) for _ in range(r.choice((2, 2, 3, 4))))
    if style < 0.55:
        made += f" {r.randint(1990, 2030) if r.random() < 0.6 else r.randint(1, 500)}"
    return made if style < 0.85 else made.title()


_SAYINGS = (
    "buy {0}", "call {1}", "hello {1}", "good morning", "the {0} is ready", "meet {1} at {2}", "I am late",
    "{0} is done", "clean the {0}", "bring the {0}", "we are out of {0}", "{1} likes {0}", "see you on {3}",
    "{0} at {2}", "{0} and {0}", "do not forget the {0}", "happy birthday {1}", "lunch at {2}", "thank you",
    "the {0} starts at {2}", "fix the {0}", "{1} has the {0}", "no {0} on {3}", "we need more {0}", "new {0} for {1}",
    "back at {2}", "hello world", "all good",
)  # fmt: skip


def sentence(r: Random) -> str:
    """A short text, as one notes or sends it."""
    if r.random() < 0.3:
        return " ".join(r.choice(COMMON) if r.random() < 0.85 else stem(r) for _ in range(r.randint(2, 6)))
    return r.choice(_SAYINGS).format(stem(r), person(r), clock(r), r.choice(words.DAYS))


def quoted(draw: Callable[[Random], str]) -> Draw:
    """The text, at times in the quotation marks that people put around it."""

    def made(r: Random) -> object:
        text = draw(r)
        mark = r.choice(("", "", "", '"', "'", "`"))
        return Spoken(text, mark + text + mark) if mark else text

    return made


def person(r: Random) -> str:
    """Somebody."""
    return r.choice(words.NAMES) if r.random() < 0.6 else words.made_up(r)


def place(r: Random) -> str:
    """A city."""
    return r.choice(words.CITIES) if r.random() < 0.6 else words.made_up(r)


def room(r: Random) -> str:
    """A room of a house."""
    return r.choice(_ROOMS) if r.random() < 0.75 else stem(r)


def mail(r: Random) -> str:
    """An email's address."""
    return f"{stem(r)}@{stem(r)}.{r.choice(('com', 'org', 'net', 'de'))}"


def day(r: Random) -> str:
    """A day, as a date or in words."""
    style = r.random()
    if style < 0.35:
        return f"{r.randint(2024, 2029)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
    if style < 0.6:
        return r.choice(words.DAYS)
    if style < 0.8:
        return r.choice(("tomorrow", "today", "next week", "tonight", "yesterday"))
    return f"{r.choice(words.MONTHS)} {r.randint(1, 28)}"


def clock(r: Random) -> str:
    """A time of day."""
    return (
        f"{r.randint(0, 23):02}:{r.randint(0, 59):02}"
        if r.random() < 0.7
        else f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}"
    )


def whole(low: int, high: int) -> Draw:
    """A whole number."""
    return lambda r: r.randint(low, high)


def number(r: Random) -> object:
    """A number, at times with a fraction."""
    style = r.random()
    if style < 0.25:
        return r.randint(1, 9999) / r.choice((10, 10, 100, 2))
    return r.randint(1, 10 ** r.randint(1, 4))


def unit(r: Random) -> str:
    """A unit of measurement."""
    return r.choice(UNITS)


def one_of(*ways: str) -> Draw:
    """One of these; `value=words` where it is said in other words."""
    pairs = [way.partition("=") for way in ways]

    def made(r: Random) -> object:
        value, _, said = r.choice(pairs)
        return Spoken(value, said) if said else value

    return made


def switch(on: str, off: str) -> Draw:
    """true or false, by the words for it; alternatives are parted by bars."""

    def made(r: Random) -> object:
        value = r.random() < 0.5
        return Spoken(value, r.choice((on if value else off).split("|")))

    return made


def several(draw: Callable[[Random], str]) -> Draw:
    """A list of one to four."""

    def made(r: Random) -> object:
        items = [draw(r) for _ in range(r.choice((1, 2, 2, 3, 3, 4)))]
        said = items[0] if len(items) == 1 else ", ".join(items[:-1]) + r.choice((" and ", ", ", " and ")) + items[-1]
        return Spoken(items, said)

    return made


def duration(r: Random) -> str:
    """How long something takes, as it is said."""
    n, what = r.randint(1, 90), r.choice(words.words_of("second minute hour day week month"))
    return f"{n} {what}{'' if n == 1 else 's'}"


def version(r: Random) -> str:
    """A program's version."""
    made = ".".join(str(r.randint(0, 30)) for _ in range(r.choice((2, 3, 3))))
    return made if r.random() < 0.7 else "v" + made


def phone(r: Random) -> str:
    """A telephone number."""
    digits = "".join(r.choices("0123456789", k=r.randint(5, 10)))
    style = r.random()
    if style < 0.4:
        return digits
    if style < 0.7:
        return f"{digits[:3]}-{digits[3:]}"
    return f"+{r.randint(1, 99)} {digits}"


def title(r: Random) -> str:
    """The title of a book, a song or a film."""
    made = " ".join(r.choice(COMMON) if r.random() < 0.8 else stem(r) for _ in range(r.choice((1, 2, 2, 3))))
    style = r.random()
    if style < 0.6:
        made = made.title()
    return f"{r.choice(('The', 'A', 'My'))} {made}" if style < 0.25 else made


def symbol(r: Random) -> str:
    """Some capital letters, as of a share or an airport."""
    return "".join(r.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=r.randint(3, 5)))


def package(r: Random) -> str:
    """A package or an image of a registry."""
    made = stem(r) if r.random() < 0.6 else f"{stem(r)}-{stem(r)}"
    return made if r.random() < 0.8 else f"{made}:{version(r) if r.random() < 0.6 else 'latest'}"


def below_zero(low: int, high: int) -> Draw:
    """A number that may have a fraction or a minus."""

    def made(r: Random) -> object:
        n = r.randint(low, high)
        return n if r.random() < 0.75 else n + r.choice((0.5, 0.25, 0.1))

    return made


def numbers(r: Random) -> object:
    """A list of two to five numbers."""
    items = [r.randint(1, 999) for _ in range(r.randint(2, 5))]
    said = ", ".join(map(str, items[:-1])) + r.choice((" and ", ", ")) + str(items[-1])
    return Spoken(items, said)
