"""Broken copies of a file."""

from pathlib import Path


def truncated(path: Path, keep: float = 0.5) -> Path:
    """A copy that ends in the middle."""
    content = path.read_bytes()
    cut = path.with_name(f"truncated-{keep}-{path.name}")
    cut.write_bytes(content[: int(len(content) * keep)])
    return cut


def damaged(path: Path, at: int, replacement: bytes) -> Path:
    """A copy with other bytes at `at`."""
    content = bytearray(path.read_bytes())
    content[at : at + len(replacement)] = replacement
    copy = path.with_name(f"damaged-{at}-{replacement.hex()[:16]}-{path.name}")
    copy.write_bytes(bytes(content))
    return copy
