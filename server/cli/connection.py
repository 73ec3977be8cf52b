"""Requests of ``llamapool chat`` and ``llamapool launch`` to a running server."""

import argparse
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any, NoReturn, cast

from server.errors import ConfigError, LlamapoolError

URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "LLAMA_API_KEY"  # the server's own variable
_TIMEOUT_S = 600.0  # until the next byte; a model may have to load first


class CommandParser(argparse.ArgumentParser):
    """A parser of a command's options. Errors are ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog.removeprefix('llamapool ')}: {message}; see {self.prog} --help")


class ClientParser(CommandParser):
    """A parser with ``--url``, ``--model`` and ``--api-key``."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"llamapool {command}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.add_argument("--url", default=URL, help="URL of the running server, without /v1 (default: %(default)s)")
        self.add_argument("--model", default="", help="id or alias of the model (default: the first chat model)")
        self.add_argument(
            "--api-key", default=os.environ.get(KEY_VARIABLE, "").split(",")[0], metavar="KEY",
            help=f"API key (default: the variable {KEY_VARIABLE})",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's URL without ``/v1``, and the API key; "" = none."""

    url: str
    key: str

    def open(self, path: str, body: Mapping[str, Any] | None = None) -> HTTPResponse:
        """Send a GET, or a POST of `body` as JSON. Raises LlamapoolError without a server or for an error status."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        data = None if body is None else json.dumps(body).encode()
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url: '{self.url}' is not a URL; write http://HOST:PORT")
        try:
            request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)  # noqa: S310
            return cast("HTTPResponse", urllib.request.urlopen(request, timeout=_TIMEOUT_S))  # noqa: S310
        except urllib.error.HTTPError as error:
            remedy = "; give its key with --api-key or LLAMA_API_KEY" if error.code == HTTPStatus.UNAUTHORIZED else ""
            with error:
                message = _message(error.read(), error.reason)
            raise LlamapoolError(f"{self.url} refused the request: {message}{remedy}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise LlamapoolError(
                f"no server at {self.url} ({reason}); start one with llamapool, or give its URL with --url"
            ) from None

    def model(self, name: str = "") -> dict[str, Any]:
        """Return the entry of ``/v1/models`` for an id or alias, or the first chat model's. Raises LlamapoolError."""
        with self.open("/v1/models") as reply:
            listed = json.load(reply)
        models: list[dict[str, Any]] = listed["data"]
        chat = {each["name"] for each in listed["models"] if "completion" in each["capabilities"]}
        if name:
            found = [each for each in models if name in (each["id"], *each["aliases"])]
        else:
            found = [each for each in models if each["id"] in chat]
        if not found:
            known = ", ".join(each["id"] for each in models) or "none"
            problem = f"no model '{name}'" if name else "no chat model"
            raise LlamapoolError(f"the server at {self.url} has {problem}; known: {known}")
        return found[0]


def _message(body: bytes, default: object) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(default)
