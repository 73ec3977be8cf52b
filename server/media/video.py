"""Decodes videos with FFmpeg's libraries (PyAV, the extra ``video``) to the frames that llama-server gets from ffmpeg
at a frame rate (tools/mtmd/mtmd-helper.cpp, mtmd_helper_video).

Only runs in a process of `decode`.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import av
import av.filter
import av.logging
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream
from numpy.typing import NDArray

from server.media.header import Unreadable
from server.media.messages import Json, answering
from server.sandbox.worker import Answer

_LENIENT: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
"""Metadata need not be UTF-8. PyAV 19, which Python 3.12 and later install, accepts it unchanged."""
_DEMUXERS = {"MP4": "mov", "Matroska": "matroska", "AVI": "avi"}  # none of them can open other files


def answerer() -> Answer:
    av.logging.set_level(None)
    # Decode once, because the sandbox later denies loading libraries.
    _frames(b"", {"form": "Matroska", "fps": 1.0, "pixels": 256, "frames": 9, "video_bytes": 1 << 20}, _sample())
    return answering(_frames)


def _sample() -> bytes:
    file = BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=1)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        for packet in (*stream.encode(VideoFrame(16, 16, "yuv420p")), *stream.encode()):
            container.mux(packet)
    return file.getvalue()


def _frames(_: bytes, options: Json, data: bytes) -> tuple[Json, bytes]:
    """Return frames per second, their size, whether there is an audio track, and the RGB bytes of each frame."""
    fps, max_pixels, max_frames, max_bytes = (options[key] for key in ("fps", "pixels", "frames", "video_bytes"))
    found: list[bytes] = []
    rate, has_audio = 0.0, False
    width = height = n_bytes = 0
    try:
        with av.open(BytesIO(data), "r", format=_DEMUXERS[options["form"]], **_LENIENT) as container:
            stream, has_audio = next(iter(container.streams.video), None), bool(container.streams.audio)
            if stream is None:
                raise Unreadable("it has no frames; send audio as WAV, MP3 or FLAC")
            if stream.codec_context is None:
                raise Unreadable("its frames have a format that can't be decoded")
            if stream.width * stream.height > max_pixels:
                shown = f"{stream.width} x {stream.height} pixels"
                raise Unreadable(f"it is a video of {shown}, at most {max_pixels} are possible")
            rate = fps if fps > 0 else float(stream.base_rate or 0)
            if not rate:
                raise Unreadable("it does not specify its frame rate")
            for frame in _at_rate(container.decode(stream), stream, rate):
                height, width, _ = frame.shape
                found.append(frame.tobytes())
                n_bytes += len(found[-1])
                if len(found) > max_frames or n_bytes > max_bytes:
                    raise Unreadable(
                        f"at {rate:g} frames a second (video_fps) it has more than {max_frames}, "
                        f"or more than {max_bytes >> 20} MiB of them"
                    )
    except (av.FFmpegError, ValueError, OverflowError):
        pass  # keep the frames that were read
    if not found:
        raise Unreadable("the video can't be decoded")
    return {"rate": rate, "width": width, "height": height, "has_audio": has_audio}, b"".join(found)


def _at_rate(decoded: Iterator[VideoFrame], stream: VideoStream, rate: float) -> Iterator[NDArray[np.uint8]]:
    """Yield upright frames at a constant rate, of shape (height, width, 3)."""
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    graph = av.filter.Graph()
    graph.threads = 1
    first: VideoFrame | None = None
    for frame in decoded:
        if first is None:
            first = frame
            source = graph.add_buffer(
                width=frame.width, height=frame.height, format=frame.format, time_base=stream.time_base
            )
            graph.link_nodes(source, graph.add("fps", f"{rate:f}"), graph.add("buffersink")).configure()
        graph.push(frame.reformat(first.width, first.height, first.format.name))
        yield from _pulled(graph, first.rotation)
    if first is not None:
        graph.push(None)
        yield from _pulled(graph, first.rotation)


def _pulled(graph: av.filter.Graph, rotation: float) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames that the filter graph has ready, rotated counterclockwise by this many degrees."""
    while True:
        try:
            frame = graph.vpull()
        except (av.BlockingIOError, av.EOFError):
            return
        pixels = frame.to_ndarray(format="rgb24", interpolation=Interpolation.BICUBIC)
        yield np.rot90(pixels, round(rotation / 90))
