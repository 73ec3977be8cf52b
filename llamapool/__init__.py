"""The public API: ``from llamapool import LlamaCppClient``; ``from llamapool.app import create_app``.

- `llamapool.client`: the typed client and its errors. It needs only httpx, and is also available as the distribution
  ``llamapool-client``. This package exports its names, too.
- `llamapool.app`: the ASGI application, which your program can run or mount. Only in the distribution ``llamapool``.

These names follow semver. The package ``server`` is internal and may change with any version.
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
