"""The documentation uses the field's terms (docs/glossary.md). A hit names the line and the better word."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "SECURITY.md"])
TERMS = {
    r"thoughts": "reasoning",
    r"(?:shared )?beginnings?": "prefix, start",
    r"kept states?": "cached KV state",
    r"(?:un)?park(?:ed|s)?": "preempted, resumed",
    r"guess(?:ed|es)": "draft tokens",
    r"anew": "again",
    r"strangers?": "other sites, other clients",
    r"confined": "sandboxed",
    r"held up": "delayed, blocked",
    r"tak(?:e|es|en) back|took back": "rolled back",
    r"seeing in": "observability",
    r"pictures?|sounds?": "image, audio",
    r"processors?": "CPU",
    r"first screen": "startup banner",
}
_TERM = re.compile(rf"\b({'|'.join(TERMS)})\b", re.IGNORECASE)
_QUOTED = re.compile(r"```.*?^```|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_standard_terms(page: Path) -> None:
    """Code, names in backticks and links are not prose."""
    prose = _QUOTED.sub(lambda quoted: "\n" * quoted[0].count("\n"), page.read_text())
    hits = [
        f"{number}: {hit[0]} (better: {better(hit[0])})"
        for number, line in enumerate(prose.splitlines(), 1)
        for hit in _TERM.finditer(line)
    ]
    assert hits == []


def better(word: str) -> str:
    return next(term for pattern, term in TERMS.items() if re.fullmatch(pattern, word, re.IGNORECASE))
