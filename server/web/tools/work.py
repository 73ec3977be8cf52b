"""The tool process: one JSON request on standard input, one JSON reply on standard output."""

import json
import os
import platform
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

from server.web.tools import files, search

MEMORY_BYTES = 1 << 30
Json = dict[str, Any]


def get_info(_: Json) -> Json:
    """Return the operating system and the current folder."""
    return {"os": " ".join(platform.uname()).strip(), "cwd": os.getcwd()}


WORK: dict[str, Callable[[Json], Json]] = {
    "read_file": files.read_file,
    "write_file": files.write_file,
    "edit_file": files.edit_file,
    "file_glob_search": search.file_glob_search,
    "grep_search": search.grep_search,
    "get_info": get_info,
}


def answer(tool: str, params: Json) -> Json:
    """Return the tool's reply; an unreadable file is an ``error`` in it."""
    try:
        return WORK[tool](params)
    except OSError as error:
        return {"error": f"{error.strerror or error}: {error.filename or params.get('path', '')}"}
    except (ValueError, re.error) as error:  # path with a NUL byte; pattern such as [z-a]
        return {"error": str(error)}


def main() -> None:
    """Run one tool."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    request = json.load(sys.stdin)
    json.dump(answer(request["tool"], request["params"]), sys.stdout)
