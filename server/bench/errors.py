"""What can go wrong, each with the exit status of ``llamapool bench``.

```
BenchError          1   a scenario could not be measured
├── Unreachable     3   nobody answers at the address
├── Refused         4   the key is missing or wrong (401, 403)
├── UnknownModel    5   the server does not have the model (404), or none was named where there are several
└── BadReply        6   the server answered something else than was asked for
```
"""


class BenchError(Exception):
    """A scenario could not be measured; the message says why."""

    status = 1


class Unreachable(BenchError):
    """Nobody answers at the address."""

    status = 3


class Refused(BenchError):
    """The key is missing or wrong."""

    status = 4


class UnknownModel(BenchError):
    """The server does not have the model, or none was named and it has several."""

    status = 5


class BadReply(BenchError):
    """The server answered something else than was asked for."""

    status = 6
