"""The native side: llama.cpp through llama-cpp-python's bindings. No other package imports `llama_cpp`.

`files` validates a model's file, `fit` chooses a context size and placement, `loader` loads; `weights`, `context`
and `sampling` are the loaded objects. `files.gguf_header` does not load the library; every other module does,
through `library`.
"""

import importlib.util
import sys
from importlib.metadata import version

from server.errors import ConfigError

LIBRARY_VERSION = "0.3.36"
"""The supported version of llama-cpp-python. Others have different structures, which ctypes does not detect."""


def check_version(installed: str) -> None:
    """Raise ConfigError for another version of llama-cpp-python. A local suffix (``+cu124``) does not count."""
    if installed.partition("+")[0] != LIBRARY_VERSION:
        raise ConfigError(
            f"llama-cpp-python {installed} is installed, and this version of Llamapool needs {LIBRARY_VERSION}: "
            f"pip install llama-cpp-python=={LIBRARY_VERSION}"
        )


def _defer_high_level_api() -> None:
    """Register `llama_cpp` as a package whose `__init__` runs on the first use of an attribute. It imports the
    high-level API with jinja2, diskcache and sqlite3, of which nothing is used here.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.loader is None or "llama_cpp" in sys.modules:
        return
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def load(name: str) -> object:
        del vars(package)["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = load
    sys.modules["llama_cpp"] = package


check_version(version("llama-cpp-python"))
_defer_high_level_api()
