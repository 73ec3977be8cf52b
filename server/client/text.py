"""``/tokenize`` and ``/detokenize``."""

from server.client.arguments import body_of
from server.client.errors import UnexpectedReply
from server.client.replies import TokenizeResponse
from server.client.shape import required
from server.client.transport import Transport


class TextCalls:
    """Text to tokens and back. Both raise `LlamaCppError`."""

    _transport: Transport

    def tokenize(
        self, content: str, add_special: bool = False, parse_special: bool = True, with_pieces: bool = False
    ) -> TokenizeResponse:
        """The tokens of `content`; with `add_special` BOS and EOS as the model wants them."""
        tokens = required(self._transport.post_object("/tokenize", body_of(locals())), "tokens")
        if not isinstance(tokens, list):
            raise UnexpectedReply("'tokens' is not an array", tokens)
        return TokenizeResponse(tokens)

    def detokenize(self, tokens: list[int]) -> str:
        """The text of `tokens`."""
        return str(required(self._transport.post_object("/detokenize", body_of(locals())), "content"))
