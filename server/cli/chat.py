"""``llamapool chat``: a chat in the terminal with a running server, streamed, with images and audio by path."""

import base64
import mimetypes
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import orjson

from server.cli.connection import ClientParser, Connection
from server.errors import LlamapoolError

_DESCRIPTION = """Chat with a model of a running server. A message may contain paths of images, audio files or PDFs
after @: "What is in @photo.png?". Quote a path with spaces: @'my photo.png'.

/clear starts a new conversation, /model NAME changes the model, /exit or Ctrl-D ends.
Without a terminal, the whole standard input is one message. The exit status is 1 if the server fails."""
_DIM, _PLAIN = "\033[2m", "\033[0m"


def main(argv: Sequence[str]) -> int:
    """Chat until the input ends. Raises LlamapoolError if there is no server."""
    parser = ClientParser("chat", _DESCRIPTION)
    parser.add_argument("message", nargs="*", help="send this message, print the reply and exit")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message")
    options = parser.parse_args(list(argv))
    connection = Connection(options.url, options.api_key)
    chat = _Chat(connection, connection.model(options.model)["id"], options.system)
    if options.message or not sys.stdin.isatty():
        chat.send(" ".join(options.message) or sys.stdin.read())
        return 0
    with suppress(ImportError):
        import readline  # noqa: F401  # editing and history for input()
    print(f"{chat.model} at {options.url}; @FILE attaches a file, /exit ends")
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        command, _, name = line.partition(" ")
        if command == "/exit":
            return 0
        try:
            if command == "/clear":
                chat = _Chat(connection, chat.model, options.system)
            elif command == "/model":
                chat.model = connection.model(name.strip())["id"]
            elif line:
                chat.send(line)
        except LlamapoolError as error:
            print(f"llamapool: {error.message}", file=sys.stderr)


class _Chat:
    def __init__(self, connection: Connection, model: str, system: str) -> None:
        self.model = model
        self._connection = connection
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def send(self, text: str) -> None:
        """Send a message and print the reply. Raises LlamapoolError, and then drops the message.

        Ctrl-C ends the reply, and the conversation keeps the printed part.
        """
        messages = [*self._messages, {"role": "user", "content": _content(text)}]
        reply = ""
        with self._connection.open(
            "/v1/chat/completions", {"model": self.model, "messages": messages, "stream": True}
        ) as response:
            reasoning = False
            try:
                for delta in _deltas(response):
                    # a pipe gets only the reply
                    thinking = (delta.get("reasoning_content") or "") if sys.stdout.isatty() else ""
                    content = delta.get("content") or ""
                    if (thinking or content) and bool(thinking) != reasoning:
                        reasoning = bool(thinking)
                        print(_DIM if reasoning else _PLAIN + "\n", end="")
                    print(thinking + content, end="", flush=True)
                    reply += content
            except KeyboardInterrupt:
                print(f"{_PLAIN}[stopped]", end="")
            except (OSError, HTTPException) as error:
                raise LlamapoolError(f"the connection ended during the reply: {error}") from None
            finally:
                print(_PLAIN if reasoning else "")
        self._messages = [*messages, {"role": "assistant", "content": reply}]


def _deltas(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the delta of each event of a streamed chat. Raises LlamapoolError for an error event."""
    for line in lines:
        name, _, data = line.strip().partition(b": ")
        if name == b"error" or (name == b"data" and data.startswith(b'{"error"')):
            error = orjson.loads(data)
            raise LlamapoolError(error.get("error", error)["message"])
        if name == b"data" and data != b"[DONE]":
            yield from (choice["delta"] for choice in orjson.loads(data)["choices"])


def _content(text: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: its text, and a part for each file named after @."""
    try:
        words = shlex.split(text) if "@" in text else []
    except ValueError:  # an unclosed quote, such as an apostrophe
        words = text.split()
    parts = [_part(Path(word[1:].rstrip("?!,;")).expanduser()) for word in words if word.startswith("@") and word[1:]]
    return [{"type": "text", "text": text}, *parts] if parts else text


def _part(path: Path) -> dict[str, Any]:
    """Return a file as a content part. Raises LlamapoolError if it is unreadable or its type is not supported."""
    kind = mimetypes.guess_type(path.name)[0] or ""
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise LlamapoolError(f"@{path}: {error.strerror}; check the path") from None
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
    if kind.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": data, "format": path.suffix[1:].lower()}}
    if kind == "application/pdf":
        return {"type": "file", "file": {"filename": path.name, "file_data": f"data:{kind};base64,{data}"}}
    raise LlamapoolError(f"@{path}: attach images, audio files or PDFs")
