"""Small templates: `prompts.yaml` has cases of a template and messages, with the expected prompt or error.

``python -m tests.unit.templates.test_prompts`` computes the results again. To add a case, write its `template` (a name
or lines, which are joined), its `messages`, and the options of `ChatTemplate.render`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from server.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.support.yaml_text import dumped, loaded

GOLDEN = Path(__file__).with_name("prompts.yaml")
FILE: dict[str, dict[str, Any]] = loaded(GOLDEN)

KEYS = {"template", "messages", "tool_source", "options", "result"}
assert all(case.keys() <= KEYS for case in FILE["cases"].values())


def result(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt with the part that starts or continues the assistant's turn, or the error."""
    lines = FILE["templates"][case["template"]] if isinstance(case["template"], str) else case["template"]
    tools = {"tool_source": case["tool_source"]} if "tool_source" in case else {}
    template = ChatTemplate("".join(lines), bos_token="<s>", eos_token="</s>", **tools)
    try:
        rendered = template.render(case["messages"], **case.get("options", {}))
    except InvalidRequest as error:
        return {"error": error.message}
    return {"prompt": rendered.text} | ({"opened": rendered.generation_prompt} if rendered.generation_prompt else {})


@pytest.mark.parametrize("name", FILE["cases"])
def test_messages_render_to_the_prompt_of_their_case(name: str) -> None:
    assert result(FILE["cases"][name]) == FILE["cases"][name]["result"]


@pytest.mark.parametrize("name", [name for name in FILE["cases"] if name.startswith("continue ")])
def test_continued_message_is_independent_of_enable_thinking(name: str) -> None:
    case = FILE["cases"][name]
    assert result({**case, "options": {**case["options"], "enable_thinking": False}}) == case["result"]


if __name__ == "__main__":
    cases = {name: {**case, "result": result(case)} for name, case in FILE["cases"].items()}
    GOLDEN.write_text(dumped({"templates": FILE["templates"], "cases": cases}), encoding="utf-8")
