"""Extract a validated object from text: the reply always matches the schema."""

import os
from enum import StrEnum

from openai import OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://localhost:8080") + "/v1", api_key="none")


class Kind(StrEnum):
    """The subject of a message."""

    ORDER = "order"
    COMPLAINT = "complaint"
    QUESTION = "question"


class Ticket(BaseModel):
    """A customer's message as structured data."""

    kind: Kind
    product: str = Field(max_length=20)
    pieces: int = Field(ge=1, le=99)
    date: str = Field(pattern=r"^2026-(0[1-9]|1[0-2])-[0-3][0-9]$")


text = "Hello! Please send me 3 red lamps until 2026-12-01. Thanks, Ada"
reply = client.chat.completions.parse(
    model="demo",
    messages=[
        {"role": "system", "content": "Answer with what the message says as JSON."},
        {"role": "user", "content": text},
    ],
    response_format=Ticket,
    temperature=0,
    max_tokens=200,
)
ticket = reply.choices[0].message.parsed
assert ticket is not None
print(ticket.model_dump_json(indent=2))
print("-- the server guarantees the schema; the accuracy depends on the model, and this one is tiny")
