"""Tests are skipped for want of a download where people work, and never in CI; so are others without a named reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MAY_BE_SKIPPED
from tests.support import downloads


@pytest.mark.parametrize(
    ("absent", "value", "said"),
    [
        ("TEMPLATE_NAMES", [], "LLAMA_CPP_TEMPLATES does not name"),
        ("SMOLLM2", Path("nothing"), "SMOLLM2_GGUF does not name"),
    ],
)
def test_in_ci_a_missing_download_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, absent: str, value: object, said: str
) -> None:
    monkeypatch.setattr(downloads, "TEMPLATE_NAMES", ["chatml"])
    monkeypatch.setattr(downloads, "SMOLLM2", Path(__file__))
    monkeypatch.setenv("CI", "true")
    downloads.check_ci()
    monkeypatch.setattr(downloads, absent, value)
    with pytest.raises(pytest.UsageError, match=said):
        downloads.check_ci()
    for off in ("", "0", "false"):
        monkeypatch.setenv("CI", off)
        downloads.check_ci()


@pytest.mark.slow
def test_in_ci_a_skip_without_a_named_reason_fails_the_run(tmp_path: Path) -> None:
    reasons, test = ("no luck", min(MAY_BE_SKIPPED)), "@pytest.mark.skip(reason={!r})\ndef test_{}(): ...\n"
    (tmp_path / "test_it.py").write_text("import pytest\n" + "".join(map(test.format, reasons, "ab")))
    names = {"LLAMA_CPP_TEMPLATES": str(downloads.TEMPLATES), "SMOLLM2_GGUF": str(downloads.SMOLLM2)}
    (tmp_path / "a.jinja").write_text("")
    if not downloads.TEMPLATE_NAMES:
        names["LLAMA_CPP_TEMPLATES"] = str(tmp_path)
    if not downloads.SMOLLM2.is_file():
        names["SMOLLM2_GGUF"] = __file__
    root = Path(__file__).parents[2]
    how: list[str | Path] = ["-q", "-n", "1", "-c", root / "pyproject.toml", "--rootdir", root, "-p", "tests.conftest"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *how, tmp_path],
        check=False,
        cwd=root,
        env={**os.environ, **names, "CI": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout
    assert "does not name:\n  no luck\n" in ended.stdout  # the named reason would be the first
