"""Missing downloads and skips without an allowed reason fail a test run in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MAY_BE_SKIPPED
from tests.support import downloads


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TEMPLATE_NAMES", [], "LLAMA_CPP_TEMPLATES does not name"),
        ("SMOLLM2", Path("nothing"), "SMOLLM2_GGUF does not name"),
    ],
)
def test_missing_downloads_are_errors_in_ci_only(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, message: str
) -> None:
    monkeypatch.setattr(downloads, "TEMPLATE_NAMES", ["chatml"])
    monkeypatch.setattr(downloads, "SMOLLM2", Path(__file__))
    monkeypatch.setenv("CI", "true")
    downloads.check_ci()
    monkeypatch.setattr(downloads, name, value)
    with pytest.raises(pytest.UsageError, match=message):
        downloads.check_ci()
    for off in ("", "0", "false"):
        monkeypatch.setenv("CI", off)
        downloads.check_ci()


def test_each_reason_that_allows_a_skip_is_one_of_a_test() -> None:
    """A reason that was changed in the test only would fail the run on machines that skip it."""
    folder = Path(__file__).parents[1]
    text = "".join(path.read_text() for path in folder.rglob("test_*.py"))
    assert [reason for reason in MAY_BE_SKIPPED if f'"{reason}"' not in text] == []


@pytest.mark.slow
def test_skips_without_an_allowed_reason_fail_the_run_in_ci(tmp_path: Path) -> None:
    reasons, test = ("no luck", min(MAY_BE_SKIPPED)), "@pytest.mark.skip(reason={!r})\ndef test_{}(): ...\n"
    (tmp_path / "test_it.py").write_text("import pytest\n" + "".join(map(test.format, reasons, "ab")))
    names = {"LLAMA_CPP_TEMPLATES": str(downloads.TEMPLATES), "SMOLLM2_GGUF": str(downloads.SMOLLM2)}
    (tmp_path / "a.jinja").write_text("")
    if not downloads.TEMPLATE_NAMES:
        names["LLAMA_CPP_TEMPLATES"] = str(tmp_path)
    if not downloads.SMOLLM2.is_file():
        names["SMOLLM2_GGUF"] = __file__
    root = Path(__file__).parents[2]
    options = ["-q", "-n", "1", "-c", f"{root}/pyproject.toml", "--rootdir", str(root), "-p", "tests.conftest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path],
        check=False,
        cwd=root,
        env={**os.environ, **names, "CI": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "does not name:\n  no luck\n" in done.stdout  # an allowed reason would precede it
