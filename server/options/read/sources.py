"""The sources of the settings, for pydantic-settings to lay over each other; `said_by_each` has them in their order.

Each one says where its values come from, so that a mistake can name it. docs/adr/0005-settings-sources.md tells
why these are not the sources that pydantic-settings ships.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from server.options.read.layers import Layer, SourcedValue, laid_over
from server.options.read.registry import Inputs, ModelRegistry
from server.options.table.model import WHERE
from server.options.table.option import Table

SectionPath = tuple[str, ...]
"""``("server",)``, ``("defaults",)`` or ``("models", id)``."""
SERVER: SectionPath = ("server",)
DEFAULTS: SectionPath = ("defaults",)
Sections = Mapping[SectionPath, Layer]


class LayerSource(PydanticBaseSettingsSource):
    """What one origin says of each section, less what a stronger source says or replaces.

    pydantic-settings merges mappings to any depth and knows no options that exclude each other. Leaving out what
    is overruled keeps a field whole (``chat_template_kwargs`` is a mapping) and lets --mlock drop ``load_mode``.
    """

    def __init__(
        self, settings_cls: type[BaseSettings], table: Table, said: Sections, stronger: "LayerSource | None"
    ) -> None:
        super().__init__(settings_cls)
        self._table, self._said, self._stronger = table, said, stronger

    def merged(self, section: SectionPath) -> dict[str, SourcedValue]:
        """What this source and the stronger ones together say of a section, with where each value comes from."""
        return laid_over(self._table, "server" if section == SERVER else "model", *self._layers(section))

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """For a field of the root model: all that this source contributes below it."""
        tree: dict[str, Any] = {}
        for section in self._said:
            if section[0] == field_name:
                node = tree
                for part in section:
                    node = node.setdefault(part, {})
                node.update(self._contribution(section))
        return tree.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """What pydantic-settings merges."""
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _contribution(self, section: SectionPath) -> dict[str, Any]:
        overruling = self._stronger.merged(section) if self._stronger else {}
        return {key: given.value for key, given in self.merged(section).items() if key not in overruling}

    def _layers(self, section: SectionPath) -> Iterator[Layer]:
        """The weakest first."""
        yield self._said.get(section, {})
        if self._stronger is not None:
            yield from self._stronger._layers(section)


def said_by_each(inputs: Inputs, roster: ModelRegistry) -> Iterator[Sections]:
    """What the command line says, and so on, the strongest first. Below the last one are the fields' own defaults."""
    flags, variables, document = inputs.flags, inputs.variables, inputs.document
    yield {SERVER: variables.vertex}  # as in llama-server, stronger than flags
    yield {SERVER: flags.server, **_under_each(roster, _shared(flags.model))}
    yield _of_models(roster.named)  # -m (or -hf, -mu, -dr) and -a: the one model that stands in place of the YAML's
    by_name = {model_id: variables.of_model(model_id) for model_id in roster.origins}
    yield {SERVER: variables.server, DEFAULTS: variables.defaults, **_of_models(by_name)}
    yield _of_models(roster.catalogued)  # a preset is stronger than LLAMA_ARG_..., as in llama-server
    yield _under_each(roster, _shared(variables.model))
    served = {} if roster.named or not roster.origins else document.models
    yield {SERVER: document.server, DEFAULTS: document.defaults, **_of_models(served)}
    yield _under_each(roster, laid_over(inputs.table, "model", document.defaults, variables.defaults))
    places = {model_id: next(iter(layer.values())).source for model_id, layer in roster.named.items()}
    yield _of_models({model_id: {"load": SourcedValue("startup", place)} for model_id, place in places.items()})


def stacked(settings_cls: type[BaseSettings], inputs: Inputs, roster: ModelRegistry) -> tuple[LayerSource, ...]:
    """The sources over what was read, the strongest first. With an empty `roster` they say nothing of models."""
    stack: list[LayerSource] = []
    for said in said_by_each(inputs, roster):
        stack.append(LayerSource(settings_cls, inputs.table, said, stack[-1] if stack else None))
    return tuple(stack)


def _of_models(layers: Mapping[str, Layer]) -> Sections:
    return {("models", model_id): layer for model_id, layer in layers.items()}


def _under_each(roster: ModelRegistry, layer: Layer) -> Sections:
    return _of_models(dict.fromkeys(roster.origins, layer))


def _shared(layer: Layer) -> Layer:
    """What a flag or variable may say of every model."""
    return {key: given for key, given in layer.items() if key not in (*WHERE, "aliases")}
