"""Train the LoRA adapter on the demo model and write it: `python extras/demo-model/adapter.py --help`."""

import argparse
import time
from pathlib import Path

import gguf
import torch
from batches import IGNORED, batches
from corpus.pirate import pirate_stream
from export import write
from network import Network, Shape, gguf_name
from tokenizer import tokenizer_at
from torch import Tensor, nn
from torch.nn import functional as F
from workers import loss_of

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
RANK = 8
ALPHA = 16.0


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the layer's and the adapter's output."""
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)


def adapt(network: Network) -> dict[str, Adapted]:
    """Add an adapter to each matrix of the blocks. Returns them by the matrix's name."""
    network.requires_grad_(False)
    adapted: dict[str, Adapted] = {}
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.Linear):
            path, _, last = name.rpartition(".")
            adapted[f"{name}.weight"] = Adapted(layer)
            setattr(network.get_submodule(path), last, adapted[f"{name}.weight"])
    return adapted


def write_adapter(adapted: dict[str, Adapted], out: Path) -> None:
    """Write the adapter as GGUF, atomically."""
    draft = out.with_suffix(".tmp")
    writer = gguf.GGUFWriter(draft, "llama")
    writer.add_type("adapter")
    writer.add_name("Llamapool demo pirate")
    writer.add_author("The Llamapool authors")
    writer.add_license("mit")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, layer in adapted.items():
        writer.add_tensor(f"{gguf_name(name)}.lora_a", layer.a.detach().numpy())
        writer.add_tensor(f"{gguf_name(name)}.lora_b", layer.b.detach().numpy())
    write(writer, draft, out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--out", type=Path, default=MODELS / "demo-lora.gguf")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    state = torch.load(args.build / f"{args.checkpoint}.pt")
    network = Network(Shape(**state["shape"]))
    network.load_state_dict(state["average"])
    adapted = adapt(network)
    data = batches(pirate_stream(1), tokenizer_at(args.build / "tokenizer.json"), 1024, 1024, seed=1)
    weights = [weight for layer in adapted.values() for weight in (layer.a, layer.b)]
    optimizer = torch.optim.AdamW(weights, lr=args.rate, weight_decay=0.0)
    started = time.monotonic()
    for step in range(args.steps):
        optimizer.param_groups[0]["lr"] = args.rate * (1 - step / args.steps)
        batch = next(data)
        loss = loss_of(network, batch) / batch[2][batch[1] != IGNORED].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    write_adapter(adapted, args.out)


if __name__ == "__main__":
    main()
