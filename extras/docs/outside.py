"""Add pages from outside of docs/ to the site: a hook of mkdocs (mkdocs.yml).

Links between pages are rewritten to their places in the site. A link to a file that is no page becomes its text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "threat-model.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/experiments.md": "experiments.md",
    "examples/README.md": "examples.md",
    "models/README.md": "demo-model.md",
    "models/demo-vision/README.md": "demo-vision.md",
}
IMAGES = ("benchmarks/plots/*.png", "models/demo-vision/frozen/word-1.png")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the site's files with the pages and images from outside."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for pattern in IMAGES:
        for image in sorted(ROOT.glob(pattern)):
            place = image.relative_to(ROOT).as_posix()
            files.append(File.generated(config, f"outside/{place}", abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links to places in the site. Raises ValueError for a link to a missing file."""
    here = page.file.src_uri
    source = next((path for path, name in PAGES.items() if name == here), f"docs/{here}")

    def lead(match: re.Match[str]) -> str:
        sign, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        for place in (PAGES.get(wanted), wanted.removeprefix("docs/"), f"outside/{wanted}"):
            if place is not None and files.get_file_from_path(place) is not None:
                there = posixpath.relpath(place, posixpath.dirname(here) or ".")
                return f"{sign}[{text}]({there}{anchor})"
        if not (ROOT / wanted).exists():
            raise ValueError(f"{source}: {target} is not there")
        return f"`{wanted}`" if text.strip("`") in (wanted, target) else f"{text} (`{wanted}`)"

    return _LINK.sub(lead, markdown)
