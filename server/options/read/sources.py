"""The sources of the settings, for pydantic-settings to lay over each other; `SOURCES` is their order.

Each one says where its values come from, so that a mistake can name it. docs/adr/0005-settings-sources.md tells
why these are not the sources that pydantic-settings ships.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from server.options.read.layers import Given, Layer, laid_over
from server.options.read.roster import Inputs, Roster
from server.options.table.model import WHERE

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
        self, settings_cls: type[BaseSettings], inputs: Inputs, roster: Roster, stronger: "LayerSource | None"
    ) -> None:
        super().__init__(settings_cls)
        self._table = inputs.table
        self._said = self.said(inputs, roster)
        self._stronger = stronger

    @abstractmethod
    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """What this origin says, whatever others say."""

    def merged(self, section: SectionPath) -> dict[str, Given]:
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


class FlagSource(LayerSource):
    """The command line. A flag of a model's option holds for every model."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """The server's flags, and the models' under each model."""
        return {SERVER: inputs.flags.server, **_under_each(roster, _shared(inputs.flags.model))}


class NamedModelSource(LayerSource):
    """-m (or -hf, -mu, -dr) and -a, or their variables: the one model that stands in place of the YAML's."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """Where its file is, and its other names."""
        return {("models", model_id): layer for model_id, layer in roster.named.items()}


class VariableSource(LayerSource):
    """The environment: variables of the server, of the defaults and of one model."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """``LLAMAPOOL_...``, and of ``LLAMA_ARG_...`` those of the server."""
        models: Sections = {("models", model_id): inputs.variables.of_model(model_id) for model_id in roster.origins}
        return {SERVER: inputs.variables.server, DEFAULTS: inputs.variables.defaults, **models}


class CatalogueSource(LayerSource):
    """The cache, --models-dir and --models-preset. A preset is stronger than ``LLAMA_ARG_...``, as in llama-server."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """Paths and the preset's sections."""
        return {("models", model_id): layer for model_id, layer in roster.catalogued.items()}


class SharedVariableSource(LayerSource):
    """llama-server's variables of a model's option: they hold for every model."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """``LLAMA_ARG_...`` under each model."""
        return _under_each(roster, _shared(inputs.variables.model))


class YamlSource(LayerSource):
    """The YAML file. Its models count unless -m names one."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """The file's sections."""
        document = inputs.document
        served = {} if roster.named or not roster.origins else document.models
        models: Sections = {("models", model_id): layer for model_id, layer in served.items()}
        return {SERVER: document.server, DEFAULTS: document.defaults, **models}


class DefaultsSource(LayerSource):
    """The YAML's ``defaults`` and their variables, under every model."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """The defaults under each model."""
        layer = laid_over(inputs.table, "model", inputs.document.defaults, inputs.variables.defaults)
        return _under_each(roster, layer)


class StartupSource(LayerSource):
    """The model of -m is loaded at start-up unless something says otherwise."""

    def said(self, inputs: Inputs, roster: Roster) -> Sections:
        """``load: startup`` for it."""
        return {
            ("models", model_id): {"load": Given("startup", next(iter(layer.values())).source)}
            for model_id, layer in roster.named.items()
        }


SOURCES: tuple[type[LayerSource], ...] = (
    FlagSource,
    NamedModelSource,
    VariableSource,
    CatalogueSource,
    SharedVariableSource,
    YamlSource,
    DefaultsSource,
    StartupSource,
)
"""The strongest first. Below the last one are the fields' own defaults."""


def stacked(settings_cls: type[BaseSettings], inputs: Inputs, roster: Roster) -> tuple[LayerSource, ...]:
    """`SOURCES` over what was read, the strongest first. With an empty `roster` they say nothing of models."""
    stack: list[LayerSource] = []
    for source in SOURCES:
        stack.append(source(settings_cls, inputs, roster, stack[-1] if stack else None))
    return tuple(stack)


def _under_each(roster: Roster, layer: Layer) -> Sections:
    return {("models", model_id): layer for model_id in roster.origins}


def _shared(layer: Layer) -> Layer:
    """What a flag or variable may say of every model."""
    return {key: given for key, given in layer.items() if key not in (*WHERE, "aliases")}
