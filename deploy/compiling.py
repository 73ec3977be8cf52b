"""Count the compiled files in pip's output, which the Makefile pipes here.

On a terminal one line changes; otherwise a line is printed for every 25 files. (Debian's awk would buffer 4 kB first.)
"""

import re
import sys

COUNT = re.compile(r"\[(\d+)/(\d+)\]")  # ninja's
EVERY = 25  # files per line, if standard error is no terminal


def main() -> None:
    """Read standard input to its end."""
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    terminal, n = sys.stderr.isatty(), 0
    for line in sys.stdin:
        if found := COUNT.search(line):
            text = f"compiling llama.cpp: {found[1]} of {found[2]}"
            if terminal:
                print(f"\r{text} ", end="", file=sys.stderr, flush=True)
            elif n % EVERY == 0 or found[1] == found[2]:
                print(text, file=sys.stderr, flush=True)
            n += 1
    if n and terminal:
        print(file=sys.stderr)


if __name__ == "__main__":
    main()
