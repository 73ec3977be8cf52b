"""Score a running server with 150 handwritten prompts: `python extras/demo-model/handwritten.py --help`.

`models/asked.jsonl` was written by hand before any test of it. A line has messages (the model's replies are inserted
between two user messages), tools, and the expected result: regular expressions that the reply must or must not match
(ignoring case), or tool calls with their arguments in any order. Truncated replies fail.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx

MODELS = Path(__file__).resolve().parents[2] / "models"
Case = dict[str, Any]


def answer(client: httpx.Client, case: Case) -> dict[str, Any]:
    """Run the conversation and return its last choice."""
    messages: list[dict[str, Any]] = []
    choice: dict[str, Any] = {}
    for i, message in enumerate(case["messages"]):
        messages.append(message)
        if message["role"] == "user" and i + 1 < len(case["messages"]):
            if case["messages"][i + 1]["role"] != "user":
                continue
        elif i + 1 < len(case["messages"]):
            continue
        body: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 400}
        if "tools" in case:
            body["tools"] = case["tools"]
        if "shape" in case:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "shape", "schema": case["shape"]}}
        choice = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
        messages.append(choice["message"])
    return choice


def calls_of(message: dict[str, Any]) -> list[str]:
    """Return the calls in a canonical form and order, in lower case. Truncated arguments stay unchanged."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return sorted(_plain({"name": f["name"], "arguments": _arguments(f["arguments"])}) for f in functions)


def _arguments(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(call: object) -> str:
    return json.dumps(call, sort_keys=True, ensure_ascii=False).lower()


def passes(case: Case, choice: dict[str, Any]) -> bool:
    """Return whether the choice is the expected result."""
    message = choice["message"]
    if choice["finish_reason"] == "length":
        return False
    if "calls" in case:
        return calls_of(message) == sorted(map(_plain, case["calls"]))
    text = message.get("content") or ""
    found = [bool(re.search(pattern, text, re.IGNORECASE)) for pattern in case.get("accept", [])]
    rejected = any(re.search(pattern, text, re.IGNORECASE) for pattern in case.get("reject", []))
    return all(found) and not rejected and not message.get("tool_calls")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8080", help="of a server with the model")
    parser.add_argument("--cases", type=Path, default=MODELS / "asked.jsonl")
    parser.add_argument("--out", type=Path, help="JSON file for the scores and all replies")
    args = parser.parse_args()
    passed: dict[str, list[bool]] = defaultdict(list)
    answers = {}
    with httpx.Client(base_url=args.url, timeout=300) as client:
        for line in args.cases.read_text().splitlines():
            case = json.loads(line)
            choice = answer(client, case)
            good = passes(case, choice)
            passed[case["kind"]].append(good)
            message = choice["message"]
            reply = calls_of(message) or message.get("content")
            answers[case["id"]] = {"passes": good, "asked": case["messages"][-1]["content"], "said": reply}
    scores = {kind: f"{sum(good)} of {len(good)}" for kind, good in passed.items()}
    for kind, score in scores.items():
        print(f"{kind:>16}  {score}")
    print(f"{'all':>16}  {sum(map(sum, passed.values()))} of {sum(map(len, passed.values()))}")
    if args.out:
        args.out.write_text(json.dumps({"scores": scores, "answers": answers}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
