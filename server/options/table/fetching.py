"""Options of the pictures, sounds and videos of requests, before a model sees them."""

import re
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, WithJsonSchema

from server.options.table.option import SettingsModel, option
from server.options.table.values import FALSE, TRUE, FilePath, Float, Int, read_list

ANYWHERE = "*"
_SITE = re.compile(r"(\*\.)?[\w.-]+|[\da-f:.]+", re.IGNORECASE)


def read_sites(value: object) -> object:
    """off, on (`ANYWHERE`), or names of sites."""
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
    """Images and audio that are not in a request, but at an address in it; and what becomes of videos."""

    group: ClassVar[str] = "Files of requests"

    media_fetch: SiteNames = option((), "--media-fetch", metavar="HOSTS")
    """Sites whose http and https addresses are fetched for a request: off (an empty list), on for all of the open
    internet, or hosts (example.com, *.example.com). Inner networks are out of reach whatever a name leads to; an IP
    address that is listed itself is not."""
    media_path: FilePath | None = option(None, "--media-path", metavar="FOLDER")
    """Folder of the files that requests may name by file:// addresses, relative to it; none = off."""
    video_fps: Float = option(4.0, "--video-fps", env=True, allow_inf_nan=False)
    """Frames of a video that a model is shown, a second; 0 or less = all of them. Needs llamapool[video]."""
    video_timestamp_interval: Int = option(5000, "--video-timestamp-interval", env=True, metavar="MS")
    """Milliseconds between the times that are told among a video's frames; 0 or less = none."""
