"""Train the embedding model on paraphrases, write it and score it: `python extras/demo-model/embed.py --help`."""

import argparse
import json
import time
from pathlib import Path
from random import Random

import torch
from corpus.paraphrases import by_meaning, held_out_pairs
from export import export
from muon import Muon
from network import Network, shape_of
from tokenizer import tokenizer_at
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from train import Average, save

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
TEMPERATURE = 0.05


def embedded(network: Network, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Return unit vectors, (text, dim): the mean of the hidden states of a text's tokens."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    tokens = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
    mask = torch.zeros(tokens.shape)
    for row, text in enumerate(ids):
        tokens[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    hidden = network(tokens)
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(mean, dim=1)


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """Return the symmetric InfoNCE loss: each text's pair against the other pairs of the batch."""
    likeness = first @ second.T / TEMPERATURE
    own = torch.arange(len(first))
    return (F.cross_entropy(likeness, own) + F.cross_entropy(likeness.T, own)) / 2


def train(network: Network, tokenizer: Tokenizer, path: Path, args: argparse.Namespace) -> None:
    """Train on pairs of phrasings with the same meaning. Each step draws new pairs."""
    meanings = list(by_meaning(1, "train", 150_000).values())
    rng = Random(1)
    matrices = [p for p in network.blocks.parameters() if p.ndim == 2]
    rest = [network.embedding.weight, *(p for p in network.parameters() if p.ndim == 1)]
    optims: list[torch.optim.Optimizer] = [Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=3e-3)]
    average, started = Average(network), time.monotonic()
    for step in range(args.steps):
        pairs = [rng.sample(questions, 2) for questions in rng.sample(meanings, args.batch)]
        texts = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        first, second = embedded(network, tokenizer, texts).chunk(2)
        loss = contrast(first, second)
        for optimizer, rate in zip(optims, (0.02, 3e-3), strict=True):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 20, 1 - step / args.steps)
        loss.backward()
        for optimizer in optims:
            optimizer.step()
        average.update(network, step)
        if step % 50 == 49:
            print(f"step {step + 1} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    save(path, network, average, optims, args.steps)


def score(model_path: Path, n_pairs: int) -> float:
    """Return the share of questions whose held-out paraphrase is the nearest of n_pairs, with llama.cpp."""
    import llama_cpp

    model = llama_cpp.Llama(str(model_path), embedding=True, n_ctx=512, n_threads=1, verbose=False)
    pairs = held_out_pairs(5, n_pairs)
    first, second = (F.normalize(torch.tensor([model.embed(pair[side]) for pair in pairs]), dim=1) for side in (0, 1))
    nearest = (first @ second.T).argmax(1)
    return float((nearest == torch.arange(n_pairs)).float().mean())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--out", type=Path, default=MODELS / "demo-embed.gguf")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=96, help="pairs per step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--score-only", action="store_true", help="only score the existing file")
    parser.add_argument("--scores", type=Path, help="JSON file for the score")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    if not args.score_only:
        tokenizer_path, checkpoint = args.build / "tokenizer.json", args.build / "embed.pt"
        tokenizer = tokenizer_at(tokenizer_path)
        train(Network(shape_of("embed", tokenizer.get_vocab_size())), tokenizer, checkpoint, args)
        export(checkpoint, tokenizer_path, args.out, "Llamapool demo embed", "f16", mean_pooling=True)
    share = score(args.out, 200)
    print(f"paraphrase ranked first: {share:.1%} of 200")
    if args.scores:
        args.scores.write_text(json.dumps({"pairs": 200, "paraphrase first": round(share, 4)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
