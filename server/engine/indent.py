"""llama-server's ``n_indent``: generation ends at the first line that is indented too little. Pure."""

from dataclasses import dataclass

_WHITE = " \t"


@dataclass(slots=True)
class IndentLimit:
    """Watches the text of one choice; the line that it begins with may have any indentation.

    The reference is server-context.cpp, process_token: the white space of the offending line stays.
    """

    smallest: int
    met: bool = False
    _indent: int = -1  # of the line that has only white space so far; -1 = within a line

    def cut(self, text: str) -> str:
        """`text` up to where a line shows to be indented too little; `met` is set then."""
        for index, char in enumerate(text):
            if self._indent >= 0 and char in _WHITE:
                self._indent += 1
            elif 0 <= self._indent < self.smallest:
                self.met = True
                return text[:index]
            else:
                self._indent = 0 if char == "\n" else -1
        return text
