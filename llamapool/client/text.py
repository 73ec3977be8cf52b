"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``."""

from typing import Any

from llamapool.client.errors import UnexpectedReply
from llamapool.client.replies import TokenizeResponse
from llamapool.client.transport import EndpointFamily, as_object, body_of, required


class TextCalls(EndpointFamily):
    """Tokenization. All methods raise `LlamaCppError`."""

    def tokenize(
        self, content: str, add_special: bool = False, parse_special: bool = True, with_pieces: bool = False
    ) -> TokenizeResponse:
        """Return the tokens of `content`. `add_special` adds BOS and EOS as the model requires."""
        tokens = required(self._transport.post_object("/tokenize", body_of(locals())), "tokens")
        if not isinstance(tokens, list):
            raise UnexpectedReply("'tokens' is not an array", tokens)
        return TokenizeResponse(tokens)

    def tokenizer_info(self) -> dict[str, Any]:
        """Return BOS, EOS, chat template and context length in vLLM's format; Llamapool only."""
        return as_object(self._transport.get("/tokenizer_info"))

    def detokenize(self, tokens: list[int]) -> str:
        """Return the text of `tokens`."""
        return str(required(self._transport.post_object("/detokenize", body_of(locals())), "content"))
