"""What a command line comes to."""

from server.pool.spec import ModelSpec
from server.settings import load_settings, model_specs

MODEL = ["-m", "model.gguf"]


def spec(*argv: str, env: dict[str, str] | None = None) -> ModelSpec:
    """Of the one model, with these flags and this environment. Raises `ConfigError`."""
    (found,) = model_specs(load_settings([*MODEL, *argv], env or {}))
    return found
