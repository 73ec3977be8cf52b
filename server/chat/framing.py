"""Formats a document for the prompt: its text between tags that contain its name.

The format depends only on the document and the client's description of it. So the next turn of a conversation has
the same tokens and hits the cache. The tags are plain text (`PlainText`), like the document itself: a name can't
become a control token.
"""

import html
import re

from server.chat.conversation import Media
from server.media.bitmap import Bitmap, Document
from server.vocab import PlainText

MAX_NAME_CHARS = 255
_SPACES = re.compile(r"[\s\x00-\x1f\x7f]+")
DOCUMENT_END = "</document>"


def document_start(name: str, media_type: str, context: str = "") -> str:
    """Return the opening tag of a document. All attribute values are escaped."""
    shown = {"name": name, "type": media_type}
    attributes = "".join(f' {key}="{_escaped(value)}"' for key, value in shown.items() if value)
    about = f"Context: {context}\n" if context else ""
    return f"<document{attributes}>\n{about}"


def framed(medium: Media, found: Document) -> list[str | Bitmap]:
    """Return the parts of the prompt for a document that was read."""
    start = document_start(medium.what or found.name, found.media_type, medium.context)
    last = found.parts[-1]
    line_end = "" if isinstance(last, str) and last.endswith("\n") else "\n"
    return [PlainText(start), *found.parts, PlainText(line_end + DOCUMENT_END)]


def _escaped(text: str) -> str:
    return html.escape(_SPACES.sub(" ", text).strip()[:MAX_NAME_CHARS])
