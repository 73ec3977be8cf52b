"""Regular expressions that find tensors by name, as llama.cpp's ``--override-tensor`` takes them.

The library searches with std::regex (ECMAScript), this package with `re`; so what is taken is what both understand
alike. Both go back and try again when a match fails, so the tries of a pattern are estimated and bounded: each place
where a match may continue in several ways multiplies them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

MAX_LENGTH = 512  # characters; the library's regular expressions need stack for each
MAX_TRIES = 128  # from one place of a name, by the estimate below
_MAX_REPEATS = 1000
_MAX_DEPTH = 16
_NAME = 60  # characters of a tensor's name at most (ggml.h, GGML_MAX_NAME)

# what follows a repetition determines where it may end: anywhere, where one or two characters in a row occur in a name,
# or at its own end, where nothing can fail any more
_ANYWHERE, _CHARACTER, _WORD, _END = range(4)
_ENDS = (_NAME, 8, 3, 1)
_RUN = 3  # digits, or the same character, in a row

_IN_CLASS = r"\[:[a-z]+:\]|\\[dDwWsS]|\\[^a-zA-Z0-9]|[^\]\\\[]|\[(?![.:=])"
_TOKEN = re.compile(
    rf"""(?:(?P<open>\((?:\?[:=!]|(?!\?)))
      | (?P<close>\))
      | (?P<either>\|)
      | (?P<edge>[\^$]|\\[bB])
      | (?P<digit>\\d|\[0-9\]|\[\[:digit:\]\])
      | (?P<some>\.|\\[DwWsS]|\[\^?(?:{_IN_CLASS})+\])
      | (?P<plain>\\[^a-zA-Z0-9]|[^\\\[\](){{}}.*+?|^$])
    )""",
    re.VERBOSE,
)
_REPEAT = re.compile(r"(?:[*+?]|\{(\d+)(,?)(\d*)\})\??")
_POSIX = {
    **{"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "lower": "a-z", "upper": "A-Z"},
    **{"space": r"\s", "blank": r" \t", "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9a-fA-F"},
    **{"cntrl": r"\x00-\x1f\x7f", "graph": "!-~", "print": " -~", "d": r"\d", "w": r"\w", "s": r"\s"},
}


@dataclass(frozen=True, slots=True)
class _Token:
    """``least`` and ``most``: how often it may be repeated."""

    kind: str
    text: str
    repeat: str
    least: int = 1
    most: int = 1


@dataclass(frozen=True, slots=True)
class _Group:
    """Its alternatives, each a row of characters, sets and groups; one that is `optional` may be missing."""

    alternatives: "list[list[_Token | _Group]]"
    optional: bool = False


def check_pattern(pattern: str) -> None:
    """Raises ValueError, saying what is wrong, for a pattern that is no regular expression, that the two
    implementations read differently, or for which they have no time or stack."""
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"has a pattern of more than {MAX_LENGTH} characters")
    try:
        compiled(pattern)
    except re.error as error:
        raise ValueError(f"has the pattern '{pattern}', which is no regular expression: {error}") from None
    counts = [max(token.least, token.most, 1) for token in _tokens(pattern) if token.repeat.startswith("{")]
    if math.prod(counts) > _MAX_REPEATS or tries(pattern) > MAX_TRIES:
        raise ValueError(f"has the pattern '{pattern}', which repeats too much; name the tensors more plainly")


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile with the library's meaning. Raises ValueError for syntax that is not common to both, and re.error."""
    return re.compile("".join(_python(token.text) + token.repeat for token in _tokens(pattern)), re.ASCII)


def _tokens(pattern: str) -> Iterator[_Token]:
    if not (pattern.isascii() and pattern.isprintable()):
        raise ValueError(f"has the pattern {pattern!a} with characters that no tensor's name has")
    at = 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise ValueError(f"has the pattern '{pattern}' with '{pattern[at:][:8]}', which is not supported there")
        token, at = _token(found), found.end()
        if repeat := _REPEAT.match(pattern, at):
            token, at = _repeated(token, repeat), repeat.end()
            if token.kind in ("open", "either", "edge") or (token.kind == "close" and repeat[0][0] != "?"):
                raise ValueError(
                    f"has the pattern '{pattern}' with '{token.text}{repeat[0]}': only ? may follow a group"
                )
        yield token


def _token(found: re.Match[str]) -> _Token:
    kind = str(found.lastgroup)
    return _Token(kind, found[0], "")


def _repeated(token: _Token, repeat: re.Match[str]) -> _Token:
    text = repeat[0]
    if text.startswith("{"):
        least = int(repeat[1])
        most = int(repeat[3]) if repeat[3] else max(least, _NAME) if repeat[2] else least
    else:
        least, most = int(text[0] == "+"), 1 if text[0] == "?" else _NAME
    return replace(token, repeat=text, least=least, most=most)


def _python(text: str) -> str:
    if not text.startswith("["):
        return text
    if "--" in text:
        raise ValueError(f"has a pattern with '{text}', where '--' is not supported")
    return "[" + re.sub(r"\[:([a-z]+):\]|\\.|[\[&~|]", _python_member, text[1:])


def _python_member(member: re.Match[str]) -> str:
    """Named classes are unknown to `re`, and some characters reserved."""
    name, text = member[1], member[0]
    if name is None:
        return text if text.startswith("\\") else "\\" + text
    if name not in _POSIX:
        raise ValueError(f"has a pattern with the class '{text}', which does not exist")
    return _POSIX[name]


def tries(pattern: str) -> int:
    """How many characters may be tried from one place of a name, estimated from above for names like those of models.
    `pattern` is one that `compiled` takes."""
    found = [_estimate(alternative, _END) for alternative in _parsed(pattern).alternatives]
    return max(ways for ways, _, _ in found) * (1 + min(max(width for _, width, _ in found), _NAME))


def _parsed(pattern: str) -> _Group:
    stack = [_Group([[]])]
    for token in _tokens(pattern):
        if token.kind == "open":
            stack.append(_Group([[]]))
        elif token.kind == "close":
            group = stack.pop()
            stack[-1].alternatives[-1].append(replace(group, optional=not token.least))
        elif token.kind == "either":
            stack[-1].alternatives.append([])
        else:
            stack[-1].alternatives[-1].append(token)
        if len(stack) > _MAX_DEPTH:
            raise ValueError(f"has the pattern '{pattern}', which nests more than {_MAX_DEPTH} groups")
    return stack[0]


def _estimate(row: Sequence[_Token | _Group], next_kind: int) -> tuple[int, int, int]:
    """The ways through it, the sets in it that match one character each, and how it begins; `next_kind` is how that
    begins which follows."""
    ways, width = 1, 0
    for item in reversed(row):
        if isinstance(item, _Group):
            inner = [_estimate(alternative, next_kind) for alternative in item.alternatives]
            ways *= math.prod(each[0] for each in inner) * _choices(item) * (1 + item.optional)
            width += max(each[1] for each in inner)
            next_kind = min(next_kind if item.optional else _END, *(each[2] for each in inner), _END)
        else:
            ways *= _ends(item, next_kind)
            width += item.least if item.kind in ("some", "digit") else 0
            next_kind = _beginning(item, next_kind)
    return ways, width, next_kind


def _ends(item: _Token, next_kind: int) -> int:
    """How many ends a repetition may have."""
    if item.least == item.most:
        return 1
    if item.most == 1:
        return 2
    return _ENDS[next_kind] if item.kind == "some" else min(_RUN, _ENDS[next_kind])


def _beginning(item: _Token, next_kind: int) -> int:
    if item.text in ("^", "$"):
        return _WORD
    if item.kind != "plain":
        return _ANYWHERE
    if not item.least:
        return min(next_kind, _CHARACTER)
    return _WORD if next_kind in (_CHARACTER, _WORD) and item.most == 1 else _CHARACTER


def _choices(group: _Group) -> int:
    """How many alternatives may begin at the same place: those with the same first character, and those with none."""
    if len(group.alternatives) == 1:
        return 1
    first = [row[0] if row else None for row in group.alternatives]
    known = Counter(item.text for item in first if isinstance(item, _Token) and item.kind == "plain" and item.least)
    return len(first) - known.total() + max(known.values(), default=0)
