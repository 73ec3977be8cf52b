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
        """Return an embedding for each text. With "base64", the reply is a third as long; the result is the same.

        Raises `LlamaCppError`: `BadRequest` for a model without pooling, for which you use ``client.embed``.
        """
        return EmbeddingsResponse.from_reply(self._transport.post_object("/v1/embeddings", body_of(locals())))


class EmbeddingCalls(EndpointFamily):
    """llama-server's own embedding endpoints. All methods raise `LlamaCppError`."""

    def embed(self, content: str | list[str], embd_normalize: int = 2) -> list[list[float]]:
        """Return an embedding for each text or, without pooling, one for each token of each text.

        `embd_normalize`: -1 none, 0 largest absolute value, 1 taxicab, 2 Euclidean, p the p-norm. Embeddings without
        pooling are never normalized.
        """
        return vectors(self._transport.post("/embedding", body_of(locals())))

    def rerank(self, query: str, documents: list[str], top_n: int | None = None) -> RerankResponse:
        """Return the scores of all documents, or of the best `top_n`, best first."""
        return RerankResponse.from_reply(self._transport.post_object("/v1/rerank", body_of(locals())), documents)
