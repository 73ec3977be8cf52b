"""The asynchronous client: many at once, and hanging up."""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from tests.clients.conftest import ENDLESS as N_ENDLESS
from tests.clients.slots import busy_slots, wait_until
from tests.support.real_server import RealServer

OPTIONS: dict[str, Any] = {"model": "tiny", "temperature": 0, "extra_body": {"ignore_eos": True}}
ENDLESS: dict[str, Any] = {
    **OPTIONS,
    "messages": [{"role": "user", "content": "never stop"}],
    "max_tokens": N_ENDLESS,
}


async def ask(client: AsyncOpenAI, text: str) -> str | None:
    messages: Any = [{"role": "user", "content": text}]
    reply: ChatCompletion = await client.chat.completions.create(**OPTIONS, messages=messages, max_tokens=12)
    return reply.choices[0].message.content


async def test_twelve_at_once_on_four_slots_each_get_their_own_answer(async_client: AsyncOpenAI) -> None:
    texts = [f"question {number} of the twelve" for number in range(12)]
    alone = [await ask(async_client, text) for text in texts]
    assert await asyncio.gather(*(ask(async_client, text) for text in texts)) == alone
    assert len(set(alone)) > 1


async def test_a_client_timeout_frees_its_slot(async_client: AsyncOpenAI, server: RealServer) -> None:
    with pytest.raises(openai.APITimeoutError):
        await async_client.chat.completions.create(**ENDLESS, timeout=0.2)
    await slots_are_free(server)


async def slots_are_free(server: RealServer) -> None:
    await asyncio.to_thread(wait_until, lambda: busy_slots(server) == 0, "every slot is free")
