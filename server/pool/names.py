"""From what a request calls a model to the model."""

from collections.abc import Sequence

from server.errors import ConfigError, InvalidRequest, ModelNotFound
from server.pool.spec import ModelSpec


class Names:
    """Ids and aliases of the configured models; raises `ConfigError` when two models share a name."""

    def __init__(self, specs: Sequence[ModelSpec]) -> None:
        self._by_name: dict[str, ModelSpec] = {}
        for spec in specs:
            for name in dict.fromkeys((spec.id, *spec.aliases)):
                other = self._by_name.setdefault(name, spec)
                if other is not spec:
                    where = f"{spec.source}: " if spec.source else ""
                    raise ConfigError(
                        f"{where}models '{other.id}' and '{spec.id}' are both called '{name}'; rename one"
                    )
        self._specs = list(specs)

    def exact(self, name: str) -> ModelSpec:
        """By id or alias; raises `ModelNotFound`."""
        if name not in self._by_name:
            raise ModelNotFound(name, [s.id for s in self._specs])
        return self._by_name[name]

    def resolve(self, name: str | None) -> ModelSpec:
        """What a request means. A single configured model accepts any name or none, as llama-server does; with
        several, raises `InvalidRequest` for none (its router's words) and `ModelNotFound` for an unknown one."""
        if len(self._specs) == 1:
            return self._specs[0]
        if not name:
            raise InvalidRequest("model name is missing from the request", "model")
        return self.exact(name)
