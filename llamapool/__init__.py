"""What programs import: ``from llamapool import LlamaCppClient``; ``from llamapool.app import create_app``.

- `llamapool.client`: the typed client and its errors. Needs httpx, and nothing of the server; also a distribution of
  its own, ``llamapool-client``. Its names are here, too.
- `llamapool.app`: the application, to be run or mounted by a program of yours; of the distribution ``llamapool``.

The server itself is the package ``server``, whose insides may change with any version; these names change as semver
says.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamapool.client import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the client on first use, because the server does not need httpx."""
    if name.startswith("_"):
        raise AttributeError(f"module 'llamapool' has no attribute {name!r}")
    return getattr(import_module("llamapool.client"), name)


def __dir__() -> list[str]:
    client = import_module("llamapool.client")
    return sorted({*globals(), *client.__all__})
