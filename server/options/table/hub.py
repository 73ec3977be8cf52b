"""Options of the hub that models are downloaded from."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from server.hub.reference import Image, Reference, is_registry
from server.options.table.option import SettingsModel, option
from server.options.table.values import AutoBool, Bool


def read_reference(value: object) -> str:
    """``owner/name[:quantization]``, or one of the short names. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("should be text")
    return str(Reference.parse(value)) if value else ""


def read_url(value: object) -> str:
    """An http or https address of a GGUF. Raises ValueError."""
    if not isinstance(value, str) or (value and not value.startswith(("http://", "https://"))):
        raise ValueError("should begin with http:// or https://")
    return value


def read_image(value: object) -> str:
    """``[registry/]name[:tag]``. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("should be text")
    if value:
        Image.parse(value)
    return value


def read_registry(value: object) -> str:
    """A host, with a port or without. Raises ValueError."""
    if not isinstance(value, str) or (value and not is_registry(value)):
        raise ValueError("should be a host such as registry.example.org or localhost:5000")
    return value


ImageName = Annotated[str, BeforeValidator(read_image)]
RepositoryName = Annotated[str, BeforeValidator(read_reference)]
Url = Annotated[str, BeforeValidator(read_url)]


class HubSettings(SettingsModel):
    """Where models come from that are not files here. The cache is LLAMA_CACHE's, HF_HUB_CACHE's or HF_HOME's folder,
    the hub MODEL_ENDPOINT's or HF_ENDPOINT's."""

    group: ClassVar[str] = "Hub"

    hf_token: str = option("", "-hft --hf-token", env="HF_TOKEN", metavar="TOKEN", secret=True)
    """Access token of the hub; empty = the one that Hugging Face's own tools use."""
    offline: Bool = option(False, "--offline", env=True)
    """Ask no hub for anything: only what the cache holds."""
    docker_registry: Annotated[str, BeforeValidator(read_registry)] = option("", metavar="HOST")
    """Where -dr finds a model whose name has no registry, as ai/gemma3 or gemma3."""
    models_cache: AutoBool = option(None, off=("--no-models-cache",))
    """Serve every model of the cache, too, as owner/name:QUANTIZATION; auto = unless --config or -m, -hf and the like
    say what is served."""
