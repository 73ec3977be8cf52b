"""Options of the model hub."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from server.hub.reference import Image, Reference, is_registry
from server.options.table.option import SettingsModel, option
from server.options.table.values import AutoBool, Bool


def read_reference(value: object) -> str:
    """Parse ``owner/name[:quantization]`` or a short name. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("should be text")
    return str(Reference.parse(value)) if value else ""


def read_url(value: object) -> str:
    """Check the http or https URL of a GGUF. Raises ValueError."""
    if not isinstance(value, str) or (value and not value.startswith(("http://", "https://"))):
        raise ValueError("should begin with http:// or https://")
    return value


def read_image(value: object) -> str:
    """Check ``[registry/]name[:tag]``. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("should be text")
    if value:
        Image.parse(value)
    return value


def read_registry(value: object) -> str:
    """Check a host name with optional port. Raises ValueError."""
    if not isinstance(value, str) or (value and not is_registry(value)):
        raise ValueError("should be a host such as registry.example.org or localhost:5000")
    return value


ImageName = Annotated[str, BeforeValidator(read_image)]
RepositoryName = Annotated[str, BeforeValidator(read_reference)]
Url = Annotated[str, BeforeValidator(read_url)]


class HubSettings(SettingsModel):
    """Downloads of models. The cache folder is LLAMA_CACHE, HF_HUB_CACHE or HF_HOME; the hub is MODEL_ENDPOINT or
    HF_ENDPOINT.
    """

    group: ClassVar[str] = "Hub"

    hf_token: str = option("", "-hft --hf-token", env="HF_TOKEN", metavar="TOKEN", secret=True)
    """Access token of the Hugging Face hub; empty = the token stored by Hugging Face's tools."""
    offline: Bool = option(False, "--offline", env=True)
    """Do not contact any hub; use the cache only."""
    docker_registry: Annotated[str, BeforeValidator(read_registry)] = option("", metavar="HOST")
    """Registry for -dr names without one, such as ai/gemma3."""
    models_cache: AutoBool = option(None, off=("--no-models-cache",))
    """Also serve every cached model, as owner/name:QUANTIZATION; auto = unless --config, -m, -hf or a similar option
    selects models.
    """
