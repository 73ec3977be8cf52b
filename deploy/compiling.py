"""Count the compiled files in pip's output, which the Makefile pipes to this script.

On a terminal, one line is updated; otherwise a line is printed for every 25 files. (Debian's awk buffers 4 kB.)
"""

import re
import sys

COUNT = re.compile(r"\[(\d+)/(\d+)\]")  # ninja's progress
EVERY = 25  # files per line without a terminal


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
