"""Download the web UI's third-party modules to server/web/static/vendor: `python extras/page/vendor.py`. Needs npm.

Each package is pinned by its version and npm's integrity hash. Files are unchanged except that package names become
relative URLs, classic scripts get an ``export``, and source map comments are removed. ``licenses/`` has the licences.
``vendor.json`` lists packages, licences and the SHA-256 of each file, which a test compares. Another run changes
nothing unless `PACKAGES` has changed.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[2] / "server" / "web" / "static" / "vendor"
LIST = VENDOR / "vendor.json"
_SOURCE_MAP = re.compile(rb"\s*//# sourceMappingURL=\S+\s*$")

Change = Callable[[bytes], bytes]


def imports(**names: str) -> Change:
    """Rewrite imports of these packages (``/`` as ``__``, ``@`` as ``_at_``) to files in the unchanged folder."""

    def change(body: bytes) -> bytes:
        for name, file in names.items():
            package = name.replace("_at_", "@").replace("__", "/").replace("_", "-")
            for quote in ('"', "'"):
                body = body.replace(f"from{quote}{package}{quote}".encode(), f'from"./{file}"'.encode())
        assert not re.search(rb'from["\'](?!\./)', body), "a browser cannot resolve an import"
        return body

    return change


def script(name: str) -> Change:
    """Export a global variable of a classic script."""
    return lambda body: body + f"\nexport default {name};\n".encode()


def universal(body: bytes) -> bytes:
    """Export the CommonJS exports of a UMD script."""
    head, tail = b"const module={exports:{}},exports=module.exports;\n", b"\nexport default module.exports;\n"
    return head + body + tail


def woff2_only(body: bytes) -> bytes:
    """Remove older font formats from KaTeX's styles."""
    return re.sub(rb",url\([^)]+\.(?:woff|ttf)\) format\(\"(?:woff|truetype)\"\)", b"", body)


def unchanged(body: bytes) -> bytes:
    """Return the file unchanged."""
    return body


@dataclass(frozen=True)
class Package:
    """A pinned package. ``files``: path in the package -> name in ``vendor/`` and the change."""

    name: str
    version: str
    license: str
    integrity: str
    files: Mapping[str, tuple[str, Change]]
    fonts: str = ""  # a folder whose woff2 files are copied


PREACT, HOOKS, CORE = "preact.js", "preact-hooks.js", "signals-core.js"
PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": (PREACT, unchanged), "hooks/dist/hooks.mjs": (HOOKS, imports(preact=PREACT))},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "MIT",
        "sha512-Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {
            "dist/signals.mjs": (
                "signals.js",
                imports(preact=PREACT, preact__hooks=HOOKS, _at_preact__signals_core=CORE),
            )
        },
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        "sha512-vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": (CORE, unchanged)},
    ),
    Package(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": ("htm.js", unchanged)},
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": ("uplot.js", script("uPlot")), "dist/uPlot.min.css": ("uplot.css", unchanged)},
    ),
    Package(
        "marked",
        "18.2.1",
        "MIT",
        "sha512-ii4bxCTCqqwpT86XZWgJNs+ZnAIZksmLGYMViWA7PDIXYIeNo1x6cDdX3JOip9NM/cI6p8z57FxliACboTruMA==",
        {"lib/marked.esm.js": ("marked.js", unchanged)},
    ),
    Package(
        "dompurify",
        "3.4.18",
        "(MPL-2.0 OR Apache-2.0)",
        "sha512-ofe3wI/uNm68HInABYFJYqQxRw1EaKAjNdrFVKqjUY+UZurvNd2L/HuQe097s/4RivWiZyP6tT7aoT8atjfhwg==",
        {"dist/purify.min.js": ("dompurify.js", universal)},
    ),
    Package(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        "sha512-KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
        {"es/highlight.min.js": ("highlight.js", unchanged)},
    ),
    Package(
        "katex",
        "0.19.1",
        "MIT",
        "sha512-jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA==",
        {"dist/katex.min.js": ("katex.js", universal), "dist/katex.min.css": ("katex.css", woff2_only)},
        fonts="dist/fonts",
    ),
    Package(
        "@mermaid-js/tiny",
        "11.17.2",
        "MIT",
        "sha512-PmFr1c5cSfNf5AngLLR98DrbvR4U5KeD7I+hQkGqG5w5Veu3QT4dG0qu9f99cpn/sKj2XxRBK0q7EL6hr9NY/A==",
        {"dist/mermaid.tiny.js": ("mermaid.js", unchanged)},
    ),
)


def main() -> None:
    """Download and check all packages, and write all files."""
    listed = []
    shutil.rmtree(VENDOR, ignore_errors=True)
    VENDOR.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            files = written(package, unpacked(package, Path(folder)))
            listed.append(
                {
                    "package": package.name,
                    "version": package.version,
                    "license": package.license,
                    "integrity": package.integrity,
                    "files": {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in files},
                }
            )
    LIST.write_text(json.dumps(listed, indent=1) + "\n")


def unpacked(package: Package, folder: Path) -> Path:
    """Return the folder of the unpacked package. Exits if its hash differs from the pinned one."""
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
    name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    archive = folder / name
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != package.integrity:
        sys.exit(f"{package.name} {package.version} does not have the pinned hash: {found}")
    target = folder / name.removesuffix(".tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return target / "package"


def written(package: Package, source: Path) -> list[str]:
    """Write the package's files for the web UI. Returns their names."""
    bodies = {
        name: _SOURCE_MAP.sub(b"\n", change((source / path).read_bytes()))
        for path, (name, change) in package.files.items()
    }
    if package.fonts:
        bodies |= {f"fonts/{font.name}": font.read_bytes() for font in (source / package.fonts).glob("*.woff2")}
    plain = package.name.strip("@").replace("/", "-")
    bodies[f"licenses/{plain}.txt"] = (source / "LICENSE").read_bytes()
    for name, body in bodies.items():
        (VENDOR / name).parent.mkdir(exist_ok=True)
        (VENDOR / name).write_bytes(body)
    return sorted(bodies)


if __name__ == "__main__":
    main()
