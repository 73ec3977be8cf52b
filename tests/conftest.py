"""For every test."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

from server.hub import cache
from tests import downloads

# A busy machine makes an example slow, and that decides nothing. The examples are the same in every run, so that a run
# fails for what was changed; `--hypothesis-profile=search` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", settings.get_profile("search"), derandomize=True)
settings.load_profile("tests")


def pytest_configure() -> None:
    """In CI no test may be skipped for want of a download. None sees its user's models, or asks their hub."""
    cache.home = lambda: Path("no such folder")
    os.environ |= {"LLAMA_CACHE": "no such folder", "HF_ENDPOINT": "http://127.0.0.1:1", "HF_TOKEN": ""}
    downloads.check_ci()


def pytest_unconfigure() -> None:
    """Close what llama_cpp opens on import and leaves open: noise behind the summary where warnings are errors."""
    module = sys.modules.get("llama_cpp._utils")
    if module is not None:
        module.outnull_file.close()
        module.errnull_file.close()
