"""The model that the name in a request selects."""

import re
from collections.abc import Mapping, Sequence

from server.errors import ModelNotFound
from server.pool.spec import ModelSpec, Task

LATEST = ":latest"
"""Ollama's default tag, which its clients may add or omit."""
_HUBS = ("hf.co/", "huggingface.co/")


class Names:
    """Finds models by id or alias, which are unique. `is_part`: other models exist, so an unknown name does not select
    the only one. During a download, management endpoints find the download by its name.
    """

    def __init__(self, specs: Sequence[ModelSpec], *, is_part: bool = False) -> None:
        self._is_part = is_part
        self._downloads = {spec.id: spec for spec in specs if spec.remote is not None and spec.remote.requested}
        others = [spec for spec in specs if spec.id not in self._downloads]
        self._by_name = {name: spec for spec in others for name in (spec.id, *spec.aliases)}
        self._specs = list(specs)

    def exact(self, name: str) -> ModelSpec:
        """Return a model by id or alias, with or without `LATEST`. Raises `ModelNotFound`."""
        found = self.find(name)
        if found is None:
            raise ModelNotFound(name, [s.id for s in self._specs])
        return found

    def find(self, name: str) -> ModelSpec | None:
        """Return the model that `exact` returns, or None."""
        return _first(name, self._downloads, self._by_name)

    def resolve(self, name: str | None, task: Task = "generate") -> ModelSpec:
        """Return the model with that id or alias, for a request.

        Without a name, it is the first model that is configured for `task`, or the first of all. A single model for
        `task` serves every name, as llama-server does. Raises `ModelNotFound` for an unknown name among several models.
        """
        if name and (found := _first(name, self._by_name, self._downloads)) is not None:
            return found
        able = [spec for spec in self._specs if spec.configured_for(task)] or self._specs
        if able and (not name or (len(able) == 1 and not self._is_part)):
            return able[0]
        raise ModelNotFound(name or "", [s.id for s in self._specs])


def hub_name(name: str) -> str:
    """Convert Ollama's ``hf.co/owner/name[:quantization]`` to ``owner/name[:quantization]``, without `LATEST`."""
    name = name.removesuffix(LATEST)
    return next((name.removeprefix(hub) for hub in _HUBS if name.startswith(hub)), name)


def _first(name: str, *tables: Mapping[str, ModelSpec]) -> ModelSpec | None:
    plain = hub_name(name)
    repository, colon, quantization = plain.partition(":")
    quantization = quantization.upper()  # cached models have its last word in their names: Q4_K_XL of UD-Q4_K_XL
    names = (name, name.removesuffix(LATEST), name + LATEST, plain, repository + colon + quantization)
    if found := next((table[each] for each in names for table in tables if each in table), None):
        return found
    last = repository + colon + re.split("[-.]", quantization)[-1]
    specs = (table[last] for table in tables if last in table)
    return next((spec for spec in specs if quantization in spec.path.name.upper()), None)
