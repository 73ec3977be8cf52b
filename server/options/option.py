"""Options: the flags, variables and checks of each field of the settings, and values with their source."""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

Section = Literal["server", "model"]


class SettingsModel(BaseModel):
    """Base of the table's classes. Every field is an `option`; its docstring is its description.

    ``group`` is the heading in --help and in the reference: ``class LogSettings(SettingsModel, group="Logging")``.
    """

    # defer_build: most classes are only bases, so their validators are never used
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    group: ClassVar[str] = ""

    def __init_subclass__(cls, group: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.group = group or cls.group

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with several values together. Each class of the table yields its own problems."""
        yield from ()

    @model_validator(mode="after")
    def _has_no_problems(self) -> Self:
        for owner in reversed(type(self).__mro__):
            for problem in vars(owner).get("problems", SettingsModel.problems)(self):
                raise ValueError(problem)
        return self


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: the spellings of one field of the settings.

    ``flags`` take a value, or switch a boolean on (``is_switch``). ``constants`` are flags without a value and the
    value they set. ``text`` converts the text of a flag or variable into the value that YAML would contain. The values
    of a ``repeat`` flag are concatenated. An ``is_path`` option's ``words`` are no paths. ``forms`` are further flags,
    each with its metavar and its own converter; ``env_forms`` are further variables with their converters. A flag's
    value has ``n_words``. Setting an option discards the values of the fields in ``replaces`` from weaker sources.
    ``also``: its names in Ollama, vLLM and others, separated by spaces, which errors understand. `Table` fills in the
    last fields.
    """

    flags: tuple[str, ...] = ()
    env: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    metavar: str = ""
    text: Callable[[str], Any] | None = None
    repeat: bool = False
    secret: bool = False
    is_path: bool = False
    words: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    forms: Mapping[str, tuple[str, Callable[[str], Any]]] = field(default_factory=dict)
    n_words: int = 1
    env_forms: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    also: str = ""
    owner: type[SettingsModel] = SettingsModel
    section: Section = "server"
    key: str = ""
    group: str = ""
    default: Any = None
    is_switch: bool = False

    @property
    def description(self) -> str:
        return descriptions(self.owner)[self.key]

    @property
    def own_variable(self) -> str:
        """Llamapool's variable for the field, of every model if it is a model's."""
        return f"LLAMAPOOL_{'SERVER' if self.section == 'server' else 'DEFAULTS'}__{self.key.upper()}"

    @property
    def plain_flags(self) -> list[str]:
        """The flags without those of ``forms``."""
        return [flag for flag in self.flags if flag not in self.forms]

    def parse(self, text: str, name: str = "") -> Any:
        """Convert the text of a flag or variable into the value that YAML would contain; `name`: which one it is."""
        convert = self.forms[name][1] if name in self.forms else self.env_forms.get(name, self.text)
        return convert(text) if convert else text


T = TypeVar("T")


def option(
    default: T,
    flags: str = "",
    *,
    env: str | bool = "",
    off: tuple[str, ...] | bool = (),
    constants: Mapping[str, Any] | None = None,
    check: Callable[[Any], object] | None = None,
    replaces: str = "",
    **more: Any,
) -> T:
    """Return a pydantic field with its `Option`.

    Example: ``n_batch: Int = option(2048, "-b --batch-size", env="LLAMA_ARG_BATCH", ge=1)``. Without ``flags``, the
    field's name is the flag. ``env=True`` means ``LLAMA_ARG_`` plus the first long flag's name. ``off`` are the flags
    that switch a boolean off; True means ``--no-`` plus that name. ``replaces`` are names, separated by spaces.
    ``check`` validates the final value, or each entry of a tuple, and raises ValueError; it does not see an empty
    default. ``more`` are fields of `Option` and pydantic's limits (``ge``, ...).
    """
    spelled = tuple(flags.split())
    long = next((flag.removeprefix("--") for flag in spelled if flag.startswith("--")), "")
    if not long and True in (env, off):
        raise ValueError("env=True and off=True need a long flag that is spelled out")
    name = "LLAMA_ARG_" + long.replace("-", "_").upper() if env is True else env or ""
    negations = ("--no-" + long,) if off is True else off or ()
    spellings = {key: more.pop(key) for key in more.keys() & Option.__slots__}
    made = Option(
        spelled,
        name,
        {**dict.fromkeys(negations, False), **(constants or {})},
        replaces=tuple(replaces.split()),
        **spellings,
    )
    info: FieldInfo = cast(Any, Field)(default, **more)
    info.metadata += [made, *([AfterValidator(_checked(check, default))] if check else [])]
    return cast(T, info)


def _checked(check: Callable[[Any], object], default: object) -> Callable[[T], T]:
    def checked(value: T) -> T:
        for entry in value if isinstance(value, tuple) else [] if value == default == "" else [value]:
            check(entry)
        return value

    return checked


@cache
def descriptions(model: type[SettingsModel]) -> Mapping[str, str]:
    """Return the docstring of each field, including inherited ones; "" if only bytecode is installed.

    A class whose fields derive from another one names that as ``documented_by``.

    pydantic can read docstrings too, but would do so at every start.
    """
    found = dict.fromkeys(model.model_fields, "")
    owners = reversed(model.__mro__[: model.__mro__.index(SettingsModel)])
    sources = (source for owner in owners for source in (owner, vars(owner).get("documented_by")) if source)
    for owner in sources:
        try:
            (made,) = ast.parse(inspect.getsource(owner)).body
        except OSError:
            continue
        assert isinstance(made, ast.ClassDef)
        for field_, text in pairwise(made.body):
            match field_, text:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    found[key] = inspect.cleandoc(docstring)
    return found


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """A value and its ``source``: a flag, a variable, or ``file:line``."""

    value: Any
    source: str


Layer = dict[str, SourcedValue]
"""The values that one source gives to fields, by field name."""
