"""Options of the images, audio, videos and documents of requests."""

import re
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, WithJsonSchema

from server.options.table.option import SettingsModel, option
from server.options.table.values import FALSE, TRUE, FilePath, Float, Int, read_list

ANYWHERE = "*"
MIB = 1024 * 1024
_SITE = re.compile(r"(\*\.)?[\w.-]+|[\da-f:.]+", re.IGNORECASE)


def read_sites(value: object) -> object:
    """Parse off, on (`ANYWHERE`), or host names."""
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in (*TRUE, *FALSE)):
        return (ANYWHERE,) if str(value).strip().lower() in TRUE else ()
    sites = read_list(value)
    if not isinstance(sites, list | tuple):
        return value
    for site in sites:
        if not isinstance(site, str) or not (site == ANYWHERE or _SITE.fullmatch(site)):
            raise ValueError(
                f"should be off, on, or hosts such as example.com, *.example.com or 10.0.0.5, not {site!r}"
            )
    return tuple(str(site).lower().rstrip(".") for site in sites)


SiteNames = Annotated[
    tuple[str, ...],
    BeforeValidator(read_sites),
    WithJsonSchema(
        {"anyOf": [{"type": "boolean"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    ),
]


class FetchSettings(SettingsModel):
    """Files of requests: whether URLs are fetched, how videos are cut into frames, and the limits of documents."""

    group: ClassVar[str] = "Files of requests"

    media_fetch: SiteNames = option((), "--media-fetch", metavar="HOSTS")
    """Hosts from which http and https URLs in requests are fetched: off, on = all public hosts, or a list (example.com,
    *.example.com). Private networks are refused whatever a name resolves to, except IP addresses listed here.
    """
    media_path: FilePath | None = option(None, "--media-path", metavar="FOLDER")
    """Folder for file:// URLs in requests, relative to it; empty = off."""
    video_fps: Float = option(4.0, "--video-fps", env=True, allow_inf_nan=False)
    """Video frames per second that a model is shown; 0 or less = all frames. Needs llamapool[video]."""
    video_timestamp_interval: Int = option(5000, "--video-timestamp-interval", env=True, metavar="MS")
    """Milliseconds between timestamps inserted among video frames; 0 or less = none."""
    document_pages: Int = option(500, "--document-pages", ge=1)
    """Most pages of a PDF in a request; a longer one is refused."""
    document_bytes: Int = option(32 * MIB, "--document-bytes", ge=1024)
    """Most bytes of a document in a request: PDF, text, Markdown, CSV or HTML."""
    document_seconds: Float = option(20.0, "--document-seconds", gt=0, allow_inf_nan=False)
    """Most CPU seconds for extracting the text of a document and rendering its pages."""
