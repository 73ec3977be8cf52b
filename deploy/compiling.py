"""What pip says while it compiles, as a count of what is compiled; the Makefile pipes it here.

One line that changes on a terminal, a line now and then elsewhere. (Not awk: Debian's waits for 4 kB before it says
anything.)
"""

import re
import sys

COUNT = re.compile(r"\[(\d+)/(\d+)\]")  # ninja's
EVERY = 25  # lines, where they stay


def main() -> None:
    """Until standard input ends."""
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
