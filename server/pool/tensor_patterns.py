"""Regular expressions for names of tensors, as in llama.cpp's ``--override-tensor``.

The library searches with std::regex (ECMAScript), this module with `re`; the usual syntax means the same in both. If
only `re` accepts a pattern, the library refuses it when the model is loaded.
"""

import re

MAX_LENGTH = 512  # characters; std::regex needs stack for each
_MANY = re.compile(r"\{\d{4}")  # repetitions also need stack
_POSIX = {
    **{"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "lower": "a-z", "upper": "A-Z"},
    **{"space": r"\s", "blank": r" \t", "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9a-fA-F"},
}
_POSIX_CLASS = re.compile(r"\[:([a-z]+):\]")


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that is too long or invalid. Its message continues the name of an option."""
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"has a pattern of more than {MAX_LENGTH} characters")
    if _MANY.search(pattern):
        raise ValueError(f"has the pattern '{pattern}', which repeats too much")
    try:
        compiled(pattern)
    except (re.error, KeyError) as error:
        raise ValueError(f"has the pattern '{pattern}', which is no regular expression: {error}") from None


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with POSIX classes. Raises `re.error`, and KeyError for an unknown class."""
    return re.compile(_POSIX_CLASS.sub(lambda found: _POSIX[found[1]], pattern), re.ASCII)
