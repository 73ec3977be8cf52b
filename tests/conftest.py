"""For every test."""

import sys


def pytest_unconfigure() -> None:
    """Close what llama_cpp opens on import and leaves open: noise behind the summary where warnings are errors."""
    module = sys.modules.get("llama_cpp._utils")
    if module is not None:
        module.outnull_file.close()
        module.errnull_file.close()
