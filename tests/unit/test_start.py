import json
import subprocess
import sys

from tests.support.real_server import ROOT

_PROGRAM = """
import json, sys
import server.cli.command_line, server.app
from server.options.option import SettingsModel
from server.dialects.fields import Body

def built(base):
    own = [base.__name__] if base.__pydantic_complete__ else []
    return sorted({*own, *(name for kind in base.__subclasses__() for name in built(kind))})

print(json.dumps({"modules": [*sys.modules], "bodies": built(Body), "options": built(SettingsModel)}))
"""
_LATER = (
    "server.llama.loader",  # not by `check-config`
    "llama_cpp",
    "limits",  # once a key has limits
    "server.cli.model_commands",  # pull, list and rm
    "server.hub.child",
    "huggingface_hub",
    "jinja2",  # in the processes that render
    "tqdm",
    "jsonschema",
)
_NOT_BEFORE_A_LOAD = ("fastapi", "httpcore2", "prometheus_client", "llama_cpp.llama", "diskcache", *_LATER[3:])


_COUNTED = frozenset(
    (
        *("numpy", "pydantic", "uvicorn", "httpcore2", "jinja2", "yaml", "websockets", "anyio", "click"),
        *("h11", "starlette", "tqdm", "fastapi", "opentelemetry", "cryptography", "prometheus_client", "llguidance"),
    )
)


def test_what_is_imported_and_built_before_the_server_listens() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert not set(_LATER) & set(found["modules"])
    own = [name for name in found["modules"] if name.partition(".")[0] == "server"]
    assert len(own) < 360  # each costs one to five milliseconds of CPU time at every start
    # Of the packages that the server depends on; others, such as rich, are only installed for development.
    dependencies = [name for name in found["modules"] if name.partition(".")[0] in _COUNTED]
    assert len(dependencies) < 490
    assert found["bodies"] == []  # the first request of an API builds its own
    assert found["options"] == ["ModelDefaults", "ServerSettings"]  # not the classes that they are made of


def test_a_model_begins_to_load_before_the_application_is_imported() -> None:
    program = "import sys, server.cli.command_line, server.model_pool, server.llama.loader; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert not set(_NOT_BEFORE_A_LOAD) & set(found)
    assert sum(name.partition(".")[0] == "server" for name in found) < 210
