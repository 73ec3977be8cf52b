"""Score a GGUF file on held-out cases with llama.cpp: `python extras/demo-model/evaluate.py --help`.

The cases are in `models/demo-cases.jsonl`. ``--draw N`` draws N new cases per ability from the corpus and writes that
file. Use another seed after each look at the misses.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import llama_cpp
from corpus import Infill, Sample, any_tools_stream, stream
from corpus.pirate import pirate_stream
from corpus.stories import is_whole

MODELS = Path(__file__).resolve().parents[2] / "models"
CASES = MODELS / "demo-cases.jsonl"
N_ABILITIES = 13
SEED = 51_000
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0},
}
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """A prompt and the expected reply."""

    ability: str
    prompt: str
    wanted: str  # the reply of the corpus
    accept: tuple[str, ...] = ()  # regular expressions that must all be found, ignoring case
    reject: tuple[str, ...] = ()  # regular expressions that must not be found
    exact: bool = False  # the same text except for surrounding white space
    calls: bool = False  # the same calls as in the wanted text
    thinking: bool = False


def case_of(made: Sample | Infill) -> Case:
    """Return a sample of the corpus as a case. Samples with reasoning are a separate ability."""
    parts = made.parts()
    last = max(i for i, (_, learnt) in enumerate(parts) if learnt)
    prompt = "".join(text for text, _ in parts[:last])
    wanted = parts[last][0].removesuffix("<|im_end|>")
    if isinstance(made, Infill):
        return Case(made.ability, prompt, wanted, exact=True)
    ability = "thinking" if made.thinking else made.ability
    calls = bool(made.turns[-1].calls)
    return Case(ability, prompt, wanted, made.accept, made.reject, calls=calls, thinking=made.thinking)


def drawn(per_ability: int) -> list[Case]:
    """Return held-out cases by ability, without duplicates."""
    found: dict[str, dict[str, Case]] = defaultdict(dict)
    for case in map(case_of, stream(SEED, "test")):
        if len(found[case.ability]) < per_ability:
            found[case.ability].setdefault(case.prompt + case.wanted, case)
        if len(found) == N_ABILITIES and all(len(kept) == per_ability for kept in found.values()):
            break
    calls = (case for case in map(case_of, any_tools_stream(SEED, "test")) if case.calls)
    found["any tools"] = {case.prompt: case for case in islice(calls, per_ability)}
    return [case for _, kept in sorted(found.items()) for case in kept.values()]


def frozen(per_ability: int | None = None) -> list[Case]:
    """Return the published cases, or the first `per_ability` of each ability."""
    kept: dict[str, list[Case]] = defaultdict(list)
    for line in CASES.read_text().splitlines():
        given = json.loads(line)
        case = Case(**given | {"accept": tuple(given["accept"]), "reject": tuple(given["reject"])})
        kept[case.ability].append(case)
    return [case for cases in kept.values() for case in cases[:per_ability]]


def pirate_cases(n_cases: int) -> list[Case]:
    """Return held-out cases for the adapter, whose replies must be pirate speech."""
    return [replace(case_of(made), ability="pirate") for made in islice(pirate_stream(SEED, "test"), n_cases)]


def calls_of(text: str) -> list[str] | None:
    """Return the calls in the text in a canonical form and order, or None if one is malformed."""
    try:
        return sorted(json.dumps(json.loads(body), sort_keys=True) for body in _CALL.findall(text))
    except ValueError:
        return None


def is_right(case: Case, written: str) -> bool:
    """Return whether the model's reply passes."""
    if case.exact:
        return written.strip() == case.wanted.strip()
    if case.thinking:
        reasoning, closing, written = written.partition("\n</think>\n\n")
        if not closing or not reasoning.strip():
            return False
        wanted = case.wanted.partition("\n</think>\n\n")[2]
        return is_right(replace(case, thinking=False, wanted=wanted), written)
    if "<think>" in written or "</think>" in written:
        return False
    if case.calls:
        return calls_of(written) == calls_of(case.wanted)
    if case.ability == "story" and not (150 <= len(written) <= 2000 and is_whole(written)):
        return False
    held = all(re.search(pattern, written, re.IGNORECASE) for pattern in case.accept)
    return held and not any(re.search(pattern, written, re.IGNORECASE) for pattern in case.reject)


def score(
    model: llama_cpp.Llama, cases: Iterable[Case], sampling: Mapping[str, float], show: int = 0
) -> dict[str, float]:
    """Return each ability's share of right, complete replies. Prints the first misses."""
    right: dict[str, list[bool]] = defaultdict(list)
    ended: list[bool] = []
    complete: Any = model.create_completion  # its types do not allow options in a mapping
    for case in cases:
        tokens = model.tokenize(case.prompt.encode(), add_bos=False, special=True)
        seed = len(right[case.ability])
        choice = complete(tokens, max_tokens=400, seed=seed, **sampling)["choices"][0]
        ended.append(choice["finish_reason"] == "stop")
        right[case.ability].append(ended[-1] and is_right(case, choice["text"]))
        if not right[case.ability][-1] and right[case.ability].count(False) <= show:
            print(f"  {case.ability}: ...{case.prompt[-160:]!r}")
            print(f"    wanted {case.wanted!r}\n    wrote  {choice['text']!r}")
    return {ability: _share(passed) for ability, passed in right.items()} | {"stops by itself": _share(ended)}


def _share(passed: Sequence[bool]) -> float:
    return sum(passed) / len(passed)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODELS / "demo.gguf")
    parser.add_argument("--draw", type=int, metavar="N", help="draw so many cases of each ability and write them")
    parser.add_argument("--per-ability", type=int, help="the first so many of each; the adapter's cases: 60")
    parser.add_argument("--sampling", nargs="+", choices=tuple(SAMPLING), default=list(SAMPLING))
    parser.add_argument("--show", type=int, default=0, help="misses to print of each ability")
    parser.add_argument("--lora", type=Path, help="score the pirate's manner with this adapter instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the scores")
    args = parser.parse_args()
    if args.draw:
        CASES.write_text("".join(json.dumps(asdict(case), ensure_ascii=False) + "\n" for case in drawn(args.draw)))
    cases = pirate_cases(args.per_ability or 60) if args.lora else frozen(args.per_ability)
    model = llama_cpp.Llama(
        str(args.model),
        n_ctx=4096,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
        lora_path=str(args.lora) if args.lora else None,
    )
    table = {name: score(model, cases, SAMPLING[name], args.show) for name in args.sampling}
    print("".join(f"{column:>18}" for column in ("ability", *table)))
    for ability in next(iter(table.values())):
        print(f"{ability:>18}" + "".join(f"{scores[ability]:>18.1%}" for scores in table.values()))
    if args.out:
        args.out.write_text(json.dumps({"cases": len(cases), **table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
