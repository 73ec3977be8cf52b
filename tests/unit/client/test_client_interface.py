"""Names, parameters, defaults and fields are those of the reference that users of the interface know."""

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import get_overloads

import pytest

from llamapool import client as package
from llamapool.client import LlamaCppClient, StopType, fields
from llamapool.client.chat import ChatCompletionsAPI
from llamapool.client.embeddings import EmbeddingsClientAPI
from llamapool.client.lora import LoraClientAPI
from llamapool.client.messages import MessagesClientAPI
from llamapool.client.models import ModelsClientAPI
from llamapool.client.openai_completions import CompletionsClientAPI
from llamapool.client.responses import ResponsesClientAPI
from llamapool.client.slots import SlotsClientAPI
from server.dialects.chat.parse import ChatBody
from server.dialects.completions.parse import CompletionBody
from server.dialects.messages.parse import MessagesBody
from server.dialects.native.parse import InfillBody, NativeBody
from server.dialects.responses.parse import ResponsesBody
from server.dialects.warnings import known_fields
from tests.support.real_server import ROOT

METHODS: dict[Callable[..., object], str] = {
    LlamaCppClient.__init__: "base_url='http://127.0.0.1:8080', api_key=None, timeout=600.0, verify_ssl=True",
    LlamaCppClient.health: "",
    LlamaCppClient.is_ready: "",
    LlamaCppClient.wait_until_ready: "timeout=60.0, poll_interval=1.0",
    LlamaCppClient.props: "",
    LlamaCppClient.set_props: "**kwargs",
    LlamaCppClient.metrics: "",
    LlamaCppClient.chat_completion: "messages, **kwargs",
    ChatCompletionsAPI.create: (
        "messages, model='gpt-codex-5.3', max_tokens=None, temperature=1.0, top_p=1.0, n=1, stream=False, stop=None, "
        "presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, user=None, response_format=None, tools=None, "
        "tool_choice=None, seed=None, mirostat=0, mirostat_tau=5.0, mirostat_eta=0.1, grammar=None, min_p=0.05, "
        "top_k=40, repeat_penalty=1.1, **kwargs"
    ),
    LlamaCppClient.complete: (
        "prompt, n_predict=-1, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.1, "
        "repeat_last_n=64, presence_penalty=0.0, frequency_penalty=0.0, mirostat=0, mirostat_tau=5.0, "
        "mirostat_eta=0.1, grammar=None, json_schema=None, seed=-1, stop=None, stream=False, cache_prompt=True, "
        "n_probs=0, samplers=None, dry_multiplier=0.0, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=-1, "
        "xtc_probability=0.0, xtc_threshold=0.1, dynatemp_range=0.0, dynatemp_exponent=1.0, typical_p=1.0, "
        "id_slot=-1, return_tokens=False, **kwargs"
    ),
    LlamaCppClient.simple_completion: "prompt, **kwargs",
    EmbeddingsClientAPI.create: "input, model='text-embedding-ada-002', encoding_format='float', dimensions=None",
    LlamaCppClient.embed: "content, embd_normalize=2",
    LlamaCppClient.tokenize: "content, add_special=False, parse_special=True, with_pieces=False",
    LlamaCppClient.detokenize: "tokens",
    LlamaCppClient.rerank: "query, documents, top_n=None",
    LlamaCppClient.infill: "input_prefix, input_suffix, input_extra=None, prompt=None, stream=False, **kwargs",
    ModelsClientAPI.list: "",
    SlotsClientAPI.list: "fail_on_no_slot=False",
    SlotsClientAPI.save: "slot_id, filename",
    SlotsClientAPI.restore: "slot_id, filename",
    SlotsClientAPI.erase: "slot_id",
    LoraClientAPI.list: "",
    LoraClientAPI.set_scales: "adapters",
}
FIELDS = {
    "CompletionResponse": "id object created model choices usage timings system_fingerprint",
    "Choice": "index message text finish_reason",
    "Message": "role content tool_calls reasoning_content",
    "Usage": "prompt_tokens completion_tokens total_tokens",
    "Timings": (
        "prompt_n prompt_ms prompt_per_token_ms prompt_per_second "
        "predicted_n predicted_ms predicted_per_token_ms predicted_per_second cache_n"
    ),
    "EmbeddingsResponse": "object data model usage",
    "EmbeddingData": "index embedding object",
    "RerankResponse": "model results usage",
    "RerankResult": "index relevance_score document",
    "TokenizeResponse": "tokens",
    "HealthStatus": "status slots_idle slots_processing",
    "SlotInfo": "id is_processing n_ctx n_predict params prompt",
    "LoraAdapter": "id path scale",
}

BODIES = [
    (ChatCompletionsAPI.create, fields.ChatFields, known_fields(ChatBody)),
    (CompletionsClientAPI.create, fields.TextFields, known_fields(CompletionBody)),
    (LlamaCppClient.complete, fields.CompletionFields, known_fields(NativeBody)),
    (LlamaCppClient.infill, fields.InfillFields, known_fields(InfillBody)),
    (MessagesClientAPI.create, fields.MessageFields, known_fields(MessagesBody).keys() - set(MessagesBody.also_known)),
    (ResponsesClientAPI.create, fields.ResponseFields, known_fields(ResponsesBody)),
]


def parameters(method: Callable[..., object]) -> str:
    """A signature without ``self`` and without types."""
    signature = inspect.signature(method)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(inspect.Signature(bare))[1:-1].replace("*, ", "")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_each_method_has_the_parameters_and_defaults(method: Callable[..., object]) -> None:
    assert parameters(method) == METHODS[method]


@pytest.mark.parametrize(("method", "typed", "known"), BODIES, ids=lambda given: getattr(given, "__qualname__", ""))
def test_each_field_that_the_server_reads_is_typed(
    method: Callable[..., object], typed: type, known: Collection[str]
) -> None:
    shown = next(overload for overload in get_overloads(method))
    named = {name for name in inspect.signature(shown).parameters if name not in ("self", "kwargs")}
    assert not named & typed.__annotations__.keys()
    assert named | typed.__annotations__.keys() == {name for name in known if "." not in name}


@pytest.mark.parametrize("method", [method for method, *_ in BODIES], ids=lambda method: method.__qualname__)
def test_a_parameter_with_a_default_has_the_type_of_its_field(method: Callable[..., object]) -> None:
    typed = next(fields for found, fields, _ in BODIES if found is method).__annotations__
    given = inspect.signature(method).parameters
    assert {name: given[name].annotation for name in given.keys() & typed} == {
        name: typed[name] for name in given.keys() & typed
    }


@pytest.mark.parametrize("name", FIELDS)
def test_each_reply_is_a_dataclass_with_the_fields(name: str) -> None:
    fields = [field.name for field in dataclasses.fields(getattr(package, name))]
    assert [field for field in fields if field != "raw"] == FIELDS[name].split()


def test_stop_types() -> None:
    assert [kind.name for kind in StopType] == ["NONE", "EOS", "LIMIT", "WORD"]


def test_the_parts_of_a_client() -> None:
    with LlamaCppClient() as client:
        assert isinstance(client.chat, ChatCompletionsAPI)
        assert isinstance(client.chat.completions, ChatCompletionsAPI)
        assert isinstance(client.embeddings, EmbeddingsClientAPI)
        assert isinstance(client.models, ModelsClientAPI)
        assert isinstance(client.slots, SlotsClientAPI)
        assert isinstance(client.lora, LoraClientAPI)


def test_importing_the_client_imports_nothing_of_the_server() -> None:
    program = (
        "import sys, llamapool.client\n"
        "print(*sorted({n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names)))\n"
        'print(*sorted(n for n in sys.modules if n.partition(".")[0] == "server" or n == "llamapool.app"))\n'
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    libraries, of_the_server = done.stdout.splitlines()
    assert of_the_server == ""
    assert "httpx" in libraries.split()
    for name in ("fastapi", "starlette", "pydantic", "llama_cpp", "numpy", "orjson", "jinja2", "prometheus_client"):
        assert name not in libraries.split()
