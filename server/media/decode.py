"""Files to pixels and samples, in processes of their own (`server.confined`): the decoders are C that reads what
strangers send. What crashes, hangs or takes too much there is a file that can't be read, and nothing else.
"""

import hashlib
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from server.confined.process import Limits, Processes, Stopped
from server.confined.worker import FAULT, Answer
from server.errors import InvalidRequest
from server.media.bitmap import Bitmap
from server.media.header import Header, Unreadable, read_header

IMAGE, AUDIO = b"i", b"a"
UNREADABLE = b"u"
_WANTED = struct.Struct("<Id4s")  # rate, seconds, the form of a sound
_SIZE = struct.Struct("<II")
MAX_KNOWN = 4096
"""Files whose sizes are remembered, some 500 bytes each."""
_Key: TypeAlias = tuple[str, str, int]  # scope, SHA-256, sample rate


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one file: ``pixels`` of a picture, ``seconds`` of a sound, ``file_bytes`` before it is decoded."""

    pixels: int = 1 << 25
    seconds: float = 1800.0
    file_bytes: int = 64 << 20


class Pixels(Protocol):
    """Decodes a picture in the process that it is called in."""

    def __call__(self, data: bytes) -> tuple[int, int, bytes]:
        """Width, height, and red, green and blue of each pixel. Raises `Unreadable`."""


class Decoder:
    """Decodes files; blocking, safe in any thread. ``answerer``: names the function that makes the processes'
    `answering` out of a library's decoder of pictures."""

    def __init__(self, answerer: str, bounds: Bounds = Bounds(), limits: Limits | None = None) -> None:
        self._bounds = bounds
        self._known = _Known()
        default = Limits(cpu_s=20, wall_s=60.0, memory_bytes=2 << 30, answer_bytes=512 << 20)
        self._processes = Processes(answerer, limits or default)

    def decode(self, data: bytes, sample_rate: int, scope: str | None = None) -> Bitmap:
        """The picture, or the sound at `sample_rate` (0: the model hears none). Raises `Unreadable`.

        One that was decoded in this `scope` before has its data when it is asked for: who has its embeddings does not
        ask. None remembers nothing (how long it takes would tell whether others have sent the same).
        """
        key = (scope or "", hashlib.sha256(data).hexdigest(), sample_rate)
        known = self._known.get(key) if scope is not None else None
        if known is not None:
            return replace(known, again=lambda: self._again(data, sample_rate))
        found = self._decoded(data, sample_rate, key[1])
        if scope is not None:
            self._known.add(key, replace(found, data=b""))
        return found

    def _again(self, data: bytes, sample_rate: int) -> bytes:
        try:
            return self._decoded(data, sample_rate, "").data
        except Unreadable as fault:  # it could be read once: there is too much to do
            raise InvalidRequest(f"a file that was read before can't be read again: {fault}") from None

    def _decoded(self, data: bytes, sample_rate: int, name: str) -> Bitmap:
        bounds = self._bounds
        if len(data) > bounds.file_bytes:
            raise Unreadable(f"it has {len(data)} bytes, at most {bounds.file_bytes} are possible")
        header = read_header(data)
        if header.width * header.height > bounds.pixels:
            shown = f"{header.width} x {header.height} pixels"
            raise Unreadable(f"it is a {header.form} of {shown}, at most {bounds.pixels} are possible")
        if header.kind == "audio" and not sample_rate:
            raise Unreadable(f"it is {header.form}, and this model hears nothing")
        wanted = _WANTED.pack(sample_rate, bounds.seconds, header.form.encode())
        try:
            kind, answer = self._processes.ask(IMAGE if header.kind == "image" else AUDIO, wanted, data)
        except Stopped as stopped:
            raise Unreadable(f"decoding this {header.form} was stopped: {stopped}") from None
        if kind in (UNREADABLE, FAULT):
            raise Unreadable(answer.decode(errors="replace"))
        return _bitmap(header, answer, name)

    def warm(self) -> None:
        """Start a process, for the first file that comes."""
        self._processes.warm()

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


class _Known:
    """What was decoded lately, without its data. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[_Key, Bitmap] = OrderedDict()

    def get(self, key: _Key) -> Bitmap | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def add(self, key: _Key, bitmap: Bitmap) -> None:
        with self._lock:
            self._found[key] = bitmap
            if len(self._found) > MAX_KNOWN:
                self._found.popitem(last=False)


def _bitmap(header: Header, answer: bytes, name: str) -> Bitmap:
    width, height = _SIZE.unpack_from(answer)
    return Bitmap(header.kind, width, height, answer[_SIZE.size :], name)


def answering(pixels: Pixels) -> Answer:
    """What a process answers with that decoder of pictures."""
    from server.media.sound import samples  # nothing that the server needs

    def answer(what: bytes, request: bytes) -> tuple[bytes, bytes]:
        rate, seconds, form = _WANTED.unpack_from(request)
        data = request[_WANTED.size :]
        try:
            if what == IMAGE:
                width, height, decoded = pixels(data)
            else:
                decoded = samples(data, form.rstrip(b"\0").decode(), rate, seconds)
                width, height = len(decoded) // 4, 1
        except Unreadable as fault:
            return UNREADABLE, str(fault).encode()
        return what, _SIZE.pack(width, height) + decoded

    return answer
