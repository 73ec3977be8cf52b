"""``/v1/embeddings``, ``/embedding`` and ``/v1/rerank``."""

from llamapool.client.replies import EmbeddingsResponse, RerankResponse, vectors
from llamapool.client.transport import EndpointFamily, body_of


class EmbeddingsClientAPI(EndpointFamily):
    """OpenAI's embeddings: ``client.embeddings.create(...)``."""

    def create(
        self,
        input: str | list[str],  # noqa: A002
        model: str = "text-embedding-ada-002",
        encoding_format: str = "float",
        dimensions: int | None = None,
    ) -> EmbeddingsResponse:
        """Return an embedding for each text. "base64" sends a third of the bytes; the result is the same.

        Raises `LlamaCppError`; a model without pooling is a `BadRequest`: use ``client.embed``.
        """
        return EmbeddingsResponse.from_reply(self._transport.post_object("/v1/embeddings", body_of(locals())))


class EmbeddingCalls(EndpointFamily):
    """llama-server's own. All raise `LlamaCppError`."""

    def embed(self, content: str | list[str], embd_normalize: int = 2) -> list[list[float]]:
        """Return an embedding for each text or, without pooling, one for each token of each text.

        `embd_normalize`: -1 none, 0 largest absolute value, 1 taxicab, 2 Euclidean, p the p-norm. Without pooling
        vectors are never normalized.
        """
        return vectors(self._transport.post("/embedding", body_of(locals())))

    def rerank(self, query: str, documents: list[str], top_n: int | None = None) -> RerankResponse:
        """Return a score for each document, best first: the best `top_n`, or all."""
        return RerankResponse.from_reply(self._transport.post_object("/v1/rerank", body_of(locals())), documents)
