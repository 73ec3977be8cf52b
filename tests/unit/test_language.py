"""The project's style for everything that people read: documentation, docstrings, web UI, options, errors, log lines,
and names of tests.

``python -m tests.unit.test_language`` (part of ``make check``) prints each hit with its place. Private terms and
docstrings of functions that do not begin with a verb are errors. Long sentences are counted, and listed with ``-v``.
Vale is not used: its packages on PyPI and npm download the program from GitHub when they run.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TERMS = {
    r"thoughts": "reasoning",
    r"shared beginning|beginnings": "prefix, start",
    r"kept states?": "cached KV state",
    r"(?:un)?park(?:ed|s)?": "preempted, resumed",
    r"guess(?:ed|es)": "draft tokens",
    r"anew": "again",
    r"strangers?": "other sites, other clients",
    r"confined": "sandboxed",
    r"held up": "delayed, blocked",
    r"tak(?:e|es|en) back|took back": "rolled back",
    r"seeing in": "observability",
    r"pictures?|sounds?": "image, audio",
    r"(?<!span )processors?": "CPU",
    r"first screen": "startup banner",
    r"but for": "except",
    r"stands? (?:in|beside|behind|there)": "is, contains",
    r"whoever": "name the actor",
}
"""Private terms of earlier versions, and the field's terms (docs/glossary.md)."""
NOT_IN_NAMES = re.compile(r"\b(?:who|whom|told|tells?|comes?|came|goes on|go on|went on|beside|in front of)\b")
"""Words without which the name of a test names the actor, the action and the condition."""
NO_VERBS = re.compile(
    r"(?:Of|From|As|In|By|For|With|Without|While|When|Where|Which|Whose|Its|Those|These|Not|No|At|On|To"
    r"|The|A|An|One|Whether|How|What|Why|All|Every|Each)\b"
)
"""First words that make a function's docstring a fragment or a noun; it begins with a verb. Properties may be nouns."""
LONG_SENTENCE = 25  # words
_TERM = re.compile(rf"\b(?:{'|'.join(TERMS)})\b", re.IGNORECASE)
_QUOTED = re.compile(r"```.*?^```|``[^`\n]*``|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|\"[^\"\n]*\"", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*[-|#├└│=]|\s\|\s")
_LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
_PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md", "examples/*.md", "extras/**/*.md")
_VALUE = re.compile(r"%[-.0-9]*[a-z]|\{[^}]*\}")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that people read.

    ``kind``: page, docstring, ui, option, error, log, test (a docstring in tests and benchmarks) or name (of a function
    or class there). ``function``: the name of the function that a docstring describes, "" for properties and everything
    else.
    """

    kind: str
    place: str
    text: str
    function: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A violation, with what to write instead."""

    text: Text
    message: str

    def __str__(self) -> str:
        return f"{self.text.place}: {self.message}"


@cache
def texts() -> list[Text]:
    return list(_texts())


def _texts() -> Iterator[Text]:
    for pattern in _PAGES:
        for page in sorted(ROOT.glob(pattern)):
            for number, line in enumerate(_prose(page.read_text()).splitlines(), 1):
                yield Text("page", f"{page.relative_to(ROOT)}:{number}", line)
    strings = ROOT / "server/web/static/app/lib/texts.js"
    for number, line in enumerate(strings.read_text().splitlines(), 1):
        if found := re.match(r"(\w+): (.+?)\s+\| ", line):
            yield Text("ui", f"{strings.relative_to(ROOT)}:{number}", _VALUE.sub("N", found[2]))
    for folder in ("server", "llamapool"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _of_module(path)
    for folder in ("tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                yield from _of_tests(path)


def _prose(text: str) -> str:
    """Blank out code, names in backticks and links."""
    return _QUOTED.sub(lambda quoted: "\n" * quoted[0].count("\n") + " X ", text)


def _of_module(path: Path) -> Iterator[Text]:
    place = path.relative_to(ROOT)
    options = place.parts[:2] == ("server", "options")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if doc := ast.get_docstring(node):
                yield Text("docstring", f"{place}:{node.body[0].lineno}", _prose(doc), _function(node))
            if options and isinstance(node, ast.ClassDef):
                for item in node.body[1:]:
                    if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                        yield Text("option", f"{place}:{item.lineno}", _prose(str(item.value.value)))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for text in _strings(node.exc):
                yield Text("error", f"{place}:{node.lineno}", text)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS:
            for text in _strings(node):
                yield Text("log", f"{place}:{node.lineno}", text)


def _of_tests(path: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
            if doc := ast.get_docstring(node):
                yield Text("test", place, _prose(doc))
            if not isinstance(node, ast.Module):
                yield Text("name", place, node.name.replace("_", " "))


def _function(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    return "" if any("property" in ast.unparse(one) for one in node.decorator_list) else node.name


def _strings(call: ast.Call) -> Iterator[str]:
    for argument in call.args[:1]:
        parts = [part.value for part in ast.walk(argument) if isinstance(part, ast.Constant)]
        yield " ".join(str(part) for part in parts if isinstance(part, str))


def private_terms() -> Iterator[Hit]:
    for text in texts():
        for hit in _TERM.finditer(text.text):
            better = next(term for pattern, term in TERMS.items() if re.fullmatch(pattern, hit[0], re.IGNORECASE))
            yield Hit(text, f"{hit[0]} (better: {better})")


def unclear_names() -> Iterator[Hit]:
    """Yield names of tests and their helpers with words that do not name an actor or an action."""
    for text in texts():
        if text.kind == "name" and (found := NOT_IN_NAMES.search(text.text)):
            yield Hit(text, f'{text.text}: name the actor and the action, without "{found[0]}"')


def fragments() -> Iterator[Hit]:
    """Yield functions whose docstring does not begin with a verb."""
    for text in texts():
        if text.function and NO_VERBS.match(text.text):
            yield Hit(text, f'{text.function}: begin with a verb, not "{text.text[:40]}"')


def long_sentences() -> Iterator[Hit]:
    for text in texts():
        for sentence in _SENTENCE.split(text.text):
            n = sum(word != "X" and any(map(str.isalnum, word)) for word in sentence.split())  # X: a name, as in a list
            if n > LONG_SENTENCE:
                yield Hit(text, f"{n} words: {' '.join(sentence.split())[:80]}")


def test_standard_terms_are_used() -> None:
    assert [str(hit) for hit in private_terms()] == []


def test_names_of_tests_are_plain() -> None:
    assert [str(hit) for hit in unclear_names()] == []


def test_docstrings_of_functions_are_no_fragments() -> None:
    assert [str(hit) for hit in fragments()] == []


def main() -> int:
    """Print errors and the number of warnings. Returns 1 if there is an error."""
    errors = [*private_terms(), *unclear_names(), *fragments()]
    for hit in [*errors, *(long_sentences() if "-v" in sys.argv[1:] else ())]:
        print(hit)
    counts = Counter(hit.text.kind for hit in long_sentences())
    long = ", ".join(f"{kind} {n}" for kind, n in counts.items())
    print(f"style: {len(errors)} errors; warnings: sentences of more than {LONG_SENTENCE} words: {long or 0}")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
