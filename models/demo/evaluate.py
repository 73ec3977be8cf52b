"""Score a GGUF on held-out cases, through llama.cpp: `python models/demo/evaluate.py --help`."""

import argparse
import json
import re
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path

import llama_cpp
from corpus import Infill, Sample, stream
from corpus.pirate import pirate_stream
from corpus.stories import is_whole

HERE = Path(__file__).parent
SEED = 41_000  # another one after each look at the misses
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0},
}
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)

Case = Sample | Infill


def cases(per_ability: int) -> dict[str, list[Case]]:
    """Held-out cases, without repetition; those that think count as an ability of their own."""
    found: dict[str, list[Case]] = defaultdict(list)
    seen: set[str] = set()
    for case in stream(SEED, "test"):
        ability = "thinking" if isinstance(case, Sample) and case.thinking else case.ability
        key = repr(case.parts())
        if key not in seen and len(found[ability]) < per_ability:
            seen.add(key)
            found[ability].append(case)
        if len(found) == 13 and all(len(kept) == per_ability for kept in found.values()):
            return dict(sorted(found.items()))
    raise AssertionError("the stream has no end")


def pirate_cases(n_cases: int) -> dict[str, list[Case]]:
    """Held-out cases for the adapter: right where the reply is a pirate's."""
    return {"pirate": list(islice(pirate_stream(SEED, "test"), n_cases))}


def prompt_and_wanted(case: Case) -> tuple[str, str]:
    """What the model is given, and what the corpus would have it write."""
    parts = case.parts()
    last = max(i for i, (_, learnt) in enumerate(parts) if learnt)
    return "".join(text for text, _ in parts[:last]), parts[last][0].removesuffix("<|im_end|>")


def calls_of(text: str) -> list[str] | None:
    """The calls in the text in one canonical form and order; None where one is malformed."""
    try:
        return sorted(json.dumps(json.loads(body), sort_keys=True) for body in _CALL.findall(text))
    except ValueError:
        return None


def is_right(case: Case, wanted: str, written: str) -> bool:
    """Whether the text that the model wrote passes."""
    if isinstance(case, Infill):
        return written.strip() == wanted.strip()
    if case.thinking:
        thought, closing, written = written.partition("\n</think>\n\n")
        if not closing or not thought.strip():
            return False
        return is_right(replace(case, thinking=False), wanted.partition("\n</think>\n\n")[2], written)
    if "<think>" in written or "</think>" in written:
        return False
    if case.turns[-1].calls:
        return calls_of(written) == calls_of(wanted)
    if case.ability == "story" and not (150 <= len(written) <= 2000 and is_whole(written)):
        return False
    held = all(re.search(pattern, written, re.IGNORECASE) for pattern in case.accept)
    return held and not any(re.search(pattern, written, re.IGNORECASE) for pattern in case.reject)


def score(
    model: llama_cpp.Llama, by_ability: dict[str, list[Case]], sampling: dict[str, float], show: int
) -> dict[str, float]:
    """Each ability's share of cases that are right and end by themselves; prints the first misses."""
    scores: dict[str, float] = {}
    n_ended = 0
    for ability, chosen in by_ability.items():
        n_right = n_shown = 0
        for seed, case in enumerate(chosen):
            prompt, wanted = prompt_and_wanted(case)
            tokens = model.tokenize(prompt.encode(), add_bos=False, special=True)
            choice = model.create_completion(tokens, max_tokens=400, seed=seed, **sampling)["choices"][0]
            ended = choice["finish_reason"] == "stop"
            right = ended and is_right(case, wanted, choice["text"])
            n_right, n_ended = n_right + right, n_ended + ended
            if not right and n_shown < show:
                n_shown += 1
                print(f"  {ability}: ...{prompt[-160:]!r}\n    wanted {wanted!r}\n    wrote  {choice['text']!r}")
        scores[ability] = n_right / len(chosen)
    scores["stops by itself"] = n_ended / sum(map(len, by_ability.values()))
    return scores


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE.parent / "demo.gguf")
    parser.add_argument("--per-ability", type=int, default=60)
    parser.add_argument("--sampling", nargs="+", choices=tuple(SAMPLING), default=list(SAMPLING))
    parser.add_argument("--show", type=int, default=0, help="misses to print of each ability")
    parser.add_argument("--lora", type=Path, help="score the pirate's manner with this adapter instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the scores")
    args = parser.parse_args()
    model = llama_cpp.Llama(
        str(args.model),
        n_ctx=4096,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
        lora_path=str(args.lora) if args.lora else None,
    )
    by_ability = pirate_cases(args.per_ability) if args.lora else cases(args.per_ability)
    table = {name: score(model, by_ability, SAMPLING[name], args.show) for name in args.sampling}
    print("".join(f"{column:>18}" for column in ("ability", *table)))
    for ability in next(iter(table.values())):
        print(f"{ability:>18}" + "".join(f"{scores[ability]:>18.1%}" for scores in table.values()))
    if args.out:
        args.out.write_text(json.dumps({"cases_per_ability": args.per_ability, **table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
