"""llama-server's ``verbose``: responses of other dialects include the native response as ``__verbose``.

It has the raw text with its markup, the rendered prompt and the effective settings (llama.cpp server-task.cpp). It
is next to the choices of a full response, and in the last event of each choice of a stream, without the streamed
text.
"""

from dataclasses import dataclass, replace
from typing import cast

from server.dialects.adapters import pairs
from server.dialects.common import Json, members
from server.dialects.completions.prompt import prompt_text
from server.dialects.dialect import Caller, Generation, Writer
from server.dialects.generation import GenerationFields
from server.dialects.native.write import Finals, NativeWriter, whole_settings
from server.engine.request import Event, Finished
from server.pool.model import LoadedModel

KEY = "__verbose"
_END = b"}\n\n"  # of an event's object


def verbose(generation: Generation, fields: GenerationFields, model: LoadedModel, caller: Caller) -> Generation:
    """Return a generation whose reply is verbose if the request, or by default the server, enables it."""
    if not (caller.verbose if fields.verbose is None else fields.verbose):
        return generation
    finals = _finals(generation, fields, model)
    native = NativeWriter(finals, generation.requests, return_tokens=bool(fields.return_tokens))
    return replace(generation, writer=_VerboseWriter(generation.writer, native, finals))


def _finals(generation: Generation, fields: GenerationFields, model: LoadedModel) -> Finals:
    first = generation.requests[0]
    return Finals(
        model=model.spec.id,
        n=first.n,
        prompts=[prompt_text(r.prompt, model) for r in generation.requests],
        settings=whole_settings(
            first,
            model.vocab,
            lora=pairs(fields.lora),
            stream=bool(fields.stream),
            grammar=fields.grammar or "",
            spec_type=model.spec.engine.asked_spec_type,
            generation_prompt=generation.generation_prompt,
        ),
    )


@dataclass
class _VerboseWriter(Writer):
    """Adds the native response: next to the choices of a whole reply (with several choices, that of the first), and
    without its text to the first event of each choice's end in a stream.
    """

    inner: Writer
    native: NativeWriter
    finals: Finals

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        self.inner.streams = self.native.streams = self.streams
        self.native.feed(prompt, event)
        chunks = self.inner.feed(prompt, event)
        if not (isinstance(event, Finished) and chunks and chunks[0].endswith(_END)):
            return chunks
        added = members({KEY: self.finals.final(prompt, event)})
        return [chunks[0].removesuffix(_END) + added + _END, *chunks[1:]]

    def finish(self) -> list[bytes]:
        return self.inner.finish()

    def body(self) -> Json | list[Json]:
        native = self.native.body()
        return {**cast(Json, self.inner.body()), KEY: native[0] if isinstance(native, list) else native}
