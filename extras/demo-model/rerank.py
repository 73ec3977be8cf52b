"""Train the reranker, write it and score it: `python extras/demo-model/rerank.py --help`."""

import argparse
import ctypes
import json
import time
from pathlib import Path
from random import Random

import gguf
import torch
from corpus.ranking import Ranking, Rankings
from export import add_card, add_shape, add_tensor, add_tokenizer, write
from muon import Muon
from network import Network, Shape, gguf_name, shape_of
from tokenizer import tokenizer_at
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
ARCHITECTURE = "neo-bert"  # llama.cpp's bidirectional architecture with RMSNorm, RoPE and SwiGLU, as in `Network`


class Reranker(nn.Module):
    """A bidirectional network with a head on the state of its first token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.body = Network(shape)
        self.cls = nn.Linear(shape.dim, shape.dim)
        self.out = nn.Linear(shape.dim, 1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Map (text, token) to scores (text,): above 0 for relevant documents."""
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        first = self.body(tokens, mask[:, None, None, :])[:, 0]
        return self.out(torch.tanh(self.cls(first)))[:, 0]


def framed(tokenizer: Tokenizer, query: str, document: str) -> list[int]:
    """Return BOS, query, EOS, document, EOS, as llama-server builds a pair for a model that adds both."""
    begin, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    assert begin is not None, "no <|endoftext|>"
    assert end is not None, "no <|im_end|>"
    return [begin, *tokenizer.encode(query).ids, end, *tokenizer.encode(document).ids, end]


def scores_of(network: Reranker, tokenizer: Tokenizer, rankings: list[Ranking]) -> Tensor:
    """Return the scores, (ranking, document)."""
    rows = [framed(tokenizer, ranking.query, document) for ranking in rankings for document in ranking.documents]
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    return network(tokens, torch.tensor([len(row) for row in rows])).view(len(rankings), -1)


def train(network: Reranker, tokenizer: Tokenizer, path: Path, args: argparse.Namespace) -> None:
    """Train on the relevant document against the others of its query, and on each document separately."""
    rankings, rng = Rankings(1, "train", 150_000), Random(args.seed)
    matrices = [p for p in network.body.blocks.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    optims: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=0.02),
        torch.optim.AdamW([p for p in network.parameters() if id(p) not in taken], lr=3e-3),
    ]
    started, shown = time.monotonic(), 0.0
    for step in range(args.steps):
        found = scores_of(network, tokenizer, [rankings.draw(rng, 8) for _ in range(args.batch)])
        relevant = torch.zeros(len(found), dtype=torch.long)
        loss = F.cross_entropy(found, relevant)
        loss = loss + F.binary_cross_entropy_with_logits(found, F.one_hot(relevant, found.shape[1]).float())
        for optimizer, rate in zip(optims, (0.02, 3e-3), strict=True):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 20, 1 - step / args.steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optims:
            optimizer.step()
        shown = loss.item() if step == 0 else 0.95 * shown + 0.05 * loss.item()
        if step % 50 == 49:
            print(f"step {step + 1} loss {shown:.4f} {time.monotonic() - started:.0f} s", flush=True)
    torch.save(network.state_dict(), path)


def tensors(network: Reranker) -> dict[str, Tensor]:
    """Return the weights with their GGUF names. Query, key and value are one tensor, gate and up another."""
    found = {gguf_name(name): weight for name, weight in network.body.state_dict().items()}
    found["enc.output_norm.weight"] = found.pop("output_norm.weight")
    for i in range(network.body.shape.n_layer):
        joined = [found.pop(f"blk.{i}.attn_{part}.weight") for part in "qkv"]
        found[f"blk.{i}.attn_qkv.weight"] = torch.cat(joined)
        gate = found.pop(f"blk.{i}.ffn_gate.weight")
        found[f"blk.{i}.ffn_up.weight"] = torch.cat([gate, found[f"blk.{i}.ffn_up.weight"]])
    for name, layer in (("cls", network.cls), ("cls.output", network.out)):
        found |= {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}
    return found


def export(network: Reranker, tokenizer: Path, out: Path) -> None:
    """Write `out` atomically."""
    draft = out.with_suffix(".tmp")
    writer = gguf.GGUFWriter(draft, ARCHITECTURE)
    add_card(writer, "Llamapool demo rerank", "f16")
    add_shape(writer, network.body.shape)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    add_tokenizer(writer, tokenizer, frame=True)
    for name, weight in tensors(network).items():
        add_tensor(writer, name, weight, "f16")
    write(writer, draft, out)


def held_out(n_rankings: int) -> list[Ranking]:
    """Return held-out queries with ten documents each, the relevant one first."""
    rankings, rng = Rankings(5, "test", 60_000), Random(5)
    return [rankings.draw(rng, 10) for _ in range(n_rankings)]


def served_scores(model_path: Path, tokenizer: Tokenizer, rankings: list[Ranking]) -> Tensor:
    """Return the scores, (ranking, document), of the GGUF file in llama.cpp."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(model_path),
        embedding=True,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_RANK,
        n_ctx=512,
        n_threads=1,
        verbose=False,
    )
    return torch.tensor(
        [[scored(model, framed(tokenizer, r.query, document)) for document in r.documents] for r in rankings]
    )


def scored(model: object, tokens: list[int]) -> float:
    """Return llama.cpp's score of a pair."""
    import llama_cpp

    context = model._ctx.ctx  # type: ignore[attr-defined]
    ids = (llama_cpp.llama_token * len(tokens))(*tokens)  # the batch only points to ids and outputs
    outputs = (ctypes.c_int8 * len(tokens))(*[1] * len(tokens))
    batch = llama_cpp.llama_batch_get_one(ids, len(tokens))
    batch.logits = outputs
    if llama_cpp.llama_encode(context, batch) != 0:
        raise RuntimeError("llama.cpp could not compute the pair")
    return float(llama_cpp.llama_get_embeddings_seq(context, 0)[0])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--out", type=Path, default=MODELS / "demo-rerank.gguf")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=16, help="queries in a step, with eight documents each")
    parser.add_argument("--seed", type=int, default=1, help="of the rankings; use a new one to continue")
    parser.add_argument("--rankings", type=int, default=300, help="held-out queries to score")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--score-only", action="store_true", help="only score the existing file")
    parser.add_argument("--scores", type=Path, help="JSON file for the score")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    tokenizer_path, checkpoint = args.build / "tokenizer.json", args.build / "rerank.pt"
    tokenizer = tokenizer_at(tokenizer_path)
    rankings, wanted = held_out(args.rankings), None
    if not args.score_only:
        network = Reranker(shape_of("rerank", tokenizer.get_vocab_size()))
        if args.resume:
            network.load_state_dict(torch.load(checkpoint))
        else:
            trained = torch.load(args.build / "embed.pt")["average"]  # words and their order, from the embedding model
            network.body.load_state_dict(trained, strict=False)
        train(network, tokenizer, checkpoint, args)
        with torch.no_grad():
            export(network, tokenizer_path, args.out)
            wanted = torch.cat([scores_of(network, tokenizer, [ranking]) for ranking in rankings])
    got = served_scores(args.out, tokenizer, rankings)
    if wanted is not None:
        print(f"llama.cpp's scores differ from PyTorch's by up to {(got - wanted).abs().max():.4f}")
    share = float((got.argmax(1) == 0).float().mean())
    print(f"relevant document first of 10: {share:.1%} of {args.rankings}")
    if args.scores:
        scores = {"rankings": args.rankings, "documents": 10, "relevant first": round(share, 4)}
        args.scores.write_text(json.dumps(scores, indent=2) + "\n")


if __name__ == "__main__":
    main()
