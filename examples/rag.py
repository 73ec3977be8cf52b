"""Find passages for a question by embeddings, select one with the reranker, and let the model answer from it."""

import os

import httpx
from openai import OpenAI

base_url = os.environ.get("BASE_URL", "http://localhost:8080")
client = OpenAI(base_url=base_url + "/v1", api_key="none")

PASSAGES = [
    "The capital of France is Paris.",
    "A spider has eight legs.",
    "The opposite of hot is cold.",
    "The day after Monday is Tuesday.",
    "Grass is green and the sky is blue.",
    "The capital of Japan is Tokyo.",
]


def embed(texts: list[str]) -> list[list[float]]:
    """Return embeddings of length 1, whose dot product is their cosine."""
    return [item.embedding for item in client.embeddings.create(model="demo-embed", input=texts).data]


def nearest(question: str, vectors: list[list[float]], n: int) -> list[str]:
    """Return the `n` passages with the most similar embeddings."""
    [query] = embed([question])
    scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors]
    return [PASSAGES[i] for i in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:n]]


def best(question: str, passages: list[str]) -> str:
    """Return the passage that the reranker ranks first."""
    body = {"model": "demo-rerank", "query": question, "documents": passages, "top_n": 1}
    reply = httpx.post(f"{base_url}/v1/rerank", json=body, timeout=60).raise_for_status()
    first: int = reply.json()["results"][0]["index"]
    return passages[first]


vectors = embed(PASSAGES)
for question in ("What is the capital of Japan?", "How many legs does a spider have?"):
    found = best(question, nearest(question, vectors, 3))
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": f"{found} {question}"}],
        temperature=0,
        max_tokens=40,
    )
    print(f"{question}\n  found: {found}\n  answer: {answer.choices[0].message.content}")
