"""Add pages outside docs/ to the site: a hook of mkdocs (mkdocs.yml).

Links between pages are rewritten to their paths in the site. A link to a file that is no page becomes plain text.
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
    """Return the site's files with the pages and images outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for pattern in IMAGES:
        for image in sorted(ROOT.glob(pattern)):
            path = image.relative_to(ROOT).as_posix()
            files.append(File.generated(config, f"outside/{path}", abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links rewritten to paths in the site. Raises ValueError for a link to a missing file."""
    here = page.file.src_uri
    source = next((path for path, name in PAGES.items() if name == here), f"docs/{here}")

    def rewrite(match: re.Match[str]) -> str:
        sign, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        for candidate in (PAGES.get(path), path.removeprefix("docs/"), f"outside/{path}"):
            if candidate is not None and files.get_file_from_path(candidate) is not None:
                link = posixpath.relpath(candidate, posixpath.dirname(here) or ".")
                return f"{sign}[{text}]({link}{anchor})"
        if not (ROOT / path).exists():
            raise ValueError(f"{source}: {target} does not exist")
        return f"`{path}`" if text.strip("`") in (path, target) else f"{text} (`{path}`)"

    return _LINK.sub(rewrite, markdown)
