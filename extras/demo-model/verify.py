"""Compare an export with its checkpoint: tokens, chat template, logits."""

import argparse
import json
from itertools import islice
from pathlib import Path

import jinja2
import llama_cpp
import numpy as np
import torch
from corpus import Infill, Sample, stream
from network import Network, Shape
from tokenizer import tokenizer_at

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
_ODD = (
    "Grüße aus Köln! Ça va? ¿Qué tal? Привет, мир. こんにちは 世界 🦙🦙",
    "a\n\n\n b\t\tc  d   \n e 12345 6.78 -9 it's I'LL we've\r\nx",
    "<|im_start|>user\n<tool_call>x</tool_call> <think>\n\n</think>\n\nfoo<|im_end|>\n",
    "def f(x):\n\n    return x  # é\n\t\tpass\n",
)


def messages(case: Sample) -> list[dict[str, object]]:
    """Return the sample without its last turn as messages of a chat request."""
    found: list[dict[str, object]] = []
    for turn in case.turns[:-1]:
        message: dict[str, object] = {"role": turn.role, "content": turn.text}
        if turn.calls:
            calls = [{"name": c.name, "arguments": json.dumps(c.arguments)} for c in turn.calls]
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        found.append(message)
    return found


def check_template(cases: list[Sample]) -> None:
    """Check that the Jinja template renders the same text as the corpus."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((HERE / "chat_template.jinja").read_text().rstrip("\n"))
    for case in cases:
        parts = case.parts()
        wanted = "".join(text for text, _ in parts[:-2])
        got = template.render(
            messages=messages(case),
            tools=list(case.tools),
            add_generation_prompt=True,
            enable_thinking=case.thinking,
        )
        assert got == wanted, f"{got!r}\n{wanted!r}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--model", type=Path, default=MODELS / "demo.gguf")
    args = parser.parse_args()
    cases = list(islice(stream(99), 500))
    check_template([case for case in cases if not isinstance(case, Infill)])
    print("template: equal on", len(cases), "samples")

    tokenizer = tokenizer_at(args.build / "tokenizer.json")
    model = llama_cpp.Llama(str(args.model), n_ctx=4096, n_threads=2, logits_all=True, verbose=False)
    texts = [*_ODD, *("".join(text for text, _ in case.parts()) for case in cases)]
    for text in texts:
        assert model.tokenize(text.encode(), add_bos=False, special=True) == tokenizer.encode(text).ids, text
    print("tokens: equal on", len(texts), "texts")

    state = torch.load(args.build / f"{args.checkpoint}.pt")
    network = Network(Shape(**state["shape"]))
    network.load_state_dict(state["average"])
    ids = tokenizer.encode(texts[10]).ids[:500]
    with torch.no_grad():
        wanted = network.logits(network(torch.tensor([ids])))[0].numpy()
    model.eval(ids)
    got = np.asarray(model.scores[: len(ids)])
    print(f"logits: largest difference {np.abs(got - wanted).max():.4f} of {np.abs(wanted).max():.1f}")
    same = (got.argmax(1) == wanted.argmax(1)).mean()
    print(f"logits: same best token at {same:.1%} of {len(ids)} positions")


if __name__ == "__main__":
    main()
