"""instructor: structured output in each of its modes."""

from collections.abc import Iterable

import instructor
from openai import OpenAI
from pydantic import field_validator
from report import LONG, MODEL, PARIS, URL, Report, expect_error, step

OPENAI = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
MODES = {
    instructor.Mode.TOOLS: "CALL-REPORT",
    instructor.Mode.JSON: "REPORT-PLEASE",
    instructor.Mode.JSON_SCHEMA: "REPORT-PLEASE",
    instructor.Mode.MD_JSON: "REPORT-FENCED",
    instructor.Mode.RESPONSES_TOOLS: "CALL-REPORT",
}
for mode, text in MODES.items():
    client = instructor.from_openai(OPENAI, mode=mode)
    request = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_retries": 0}
    with step(f"{mode.name}: a typed reply"):
        assert client.chat.completions.create(response_model=Report, **request).model_dump() == PARIS.model_dump()
    if mode is not instructor.Mode.RESPONSES_TOOLS:
        with step(f"{mode.name}: a typed reply in a stream"):
            request["messages"] = [{"role": "user", "content": text.replace("CALL-REPORT", "CALL-PARTIAL")}]
            assert list(client.chat.completions.create_partial(response_model=Report, **request))[-1].sunny is True
CLIENT = instructor.from_openai(OPENAI, mode=instructor.Mode.TOOLS)
with step("parallel calls"):
    parallel = instructor.from_openai(OPENAI, mode=instructor.Mode.PARALLEL_TOOLS)
    reports = parallel.chat.completions.create(
        model=MODEL, response_model=Iterable[Report], messages=[{"role": "user", "content": "CALL-REPORT-TWICE"}]
    )
    assert [each.city for each in reports] == ["Paris", "Rome"]
with step("an invalid reply is retried"):

    class Sunny(Report):  # type: ignore[misc]  # Any for mypy, which does not find the module
        """Rejects Paris, so that the client retries."""

        @field_validator("city")
        @classmethod
        def not_paris(cls, city: str) -> str:
            if city == "Paris":
                raise ValueError("CALL-ANOTHER")
            return city

    report = CLIENT.chat.completions.create(
        model=MODEL, response_model=Sunny, max_retries=2, messages=[{"role": "user", "content": "CALL-SUNNY"}]
    )
    assert report.city == "Rome"
with step("a context overflow is reported"):
    with expect_error() as errors:
        CLIENT.chat.completions.create(
            model=MODEL, response_model=Report, max_retries=0, messages=[{"role": "user", "content": LONG}]
        )
    assert "context" in str(errors[0]), errors
