"""Going on with a last assistant message: its thoughts and content become the end of the prompt.

llama.cpp common/chat.cpp, common_chat_continuation: content is continued behind closed thoughts; a message that
has only thoughts goes on thinking.
"""

from dataclasses import dataclass

from server.chat.reasoning import thinking_tags
from server.chat.template import RenderedPrompt
from server.dialects.chat_messages import Message


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the model is to go on from."""

    content: str
    thought: str
    thinks: bool  # it goes on with the thought

    @classmethod
    def of(cls, message: Message, wanted: object) -> "Prefill":
        """The prefill in a message; `wanted` is the request's ``continue_final_message``."""
        content, thought = message["content"], message.get("reasoning_content", "")
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        thinks = wanted == "reasoning_content" or (wanted != "content" and bool(thought) and not content)
        return cls("" if thinks else content, thought, thinks)

    def end(self, rendered: RenderedPrompt, source: str) -> RenderedPrompt:
        """`rendered`, a prompt that opens the assistant's turn, with the message's parts behind it."""
        opening, closing = thinking_tags(source)
        added = self.content
        opened = opens_thoughts(rendered.generation_prompt, source)
        if opened or self.thought or self.thinks:
            start = "" if opened else f"{opening}\n"
            stop = "" if self.thinks else f"\n{closing}\n\n"
            added = f"{start}{self.thought}{stop}{self.content}"
        return RenderedPrompt(rendered.text + added, rendered.generation_prompt + added)


def opens_thoughts(generation_prompt: str, source: str) -> bool:
    """Whether the assistant's turn begins inside thoughts."""
    opening, closing = thinking_tags(source)
    at = generation_prompt.rfind(opening)
    return at >= 0 and closing not in generation_prompt[at:]
