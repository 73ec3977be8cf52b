"""One option of the table: how a field of a settings model is spelled outside."""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from server.options.table.values import FilePath, Place

Section = Literal["server", "model"]


class SettingsModel(BaseModel):
    """Base of the table's classes: every field is an `option`, its description is its docstring."""

    # of most classes nothing is validated but what is made of them
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    group: ClassVar[str] = ""  # heading in --help and in the reference


@dataclass(frozen=True, slots=True)
class Option:
    """Spellings of one field.

    ``flags`` take a value, or switch a boolean on; ``constants`` are flags without a value, each with what it
    sets. ``text`` turns a flag's or variable's text into what YAML would hold. A ``repeat`` flag adds up.
    ``forms`` are further flags with a metavar and a text reader of their own, ``env_forms`` further variables with a
    text reader. A flag's value has ``n_words``.
    Setting an option drops what weaker sources say of the fields in ``replaces``.
    """

    flags: tuple[str, ...] = ()
    env: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    metavar: str = ""
    text: Callable[[str], Any] | None = None
    repeat: bool = False
    secret: bool = False
    is_path: bool = False
    replaces: tuple[str, ...] = ()
    forms: Mapping[str, tuple[str, Callable[[str], Any]]] = field(default_factory=dict)
    n_words: int = 1
    env_forms: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)


T = TypeVar("T")


def option(
    default: T,
    flags: str = "",
    *,
    env: str | bool = "",
    off: tuple[str, ...] | bool = (),
    constants: Mapping[str, Any] | None = None,
    metavar: str = "",
    text: Callable[[str], Any] | None = None,
    repeat: bool = False,
    secret: bool = False,
    is_path: bool = False,
    replaces: tuple[str, ...] = (),
    forms: Mapping[str, tuple[str, Callable[[str], Any]]] | None = None,
    env_forms: Mapping[str, Callable[[str], Any]] | None = None,
    n_words: int = 1,
    check: Callable[[Any], object] | None = None,
    **limits: float,
) -> T:
    """A field and its `Option`: ``n_batch: Int = option(2048, "-b --batch-size", env="LLAMA_ARG_BATCH", ge=1)``.

    Without flags the field's own name becomes the flag. ``env`` True: ``LLAMA_ARG_`` and the first long flag's name;
    ``off``: a boolean's negations, True: ``--no-`` and that name. ``check`` sees the value last, of a list each
    entry, but no empty text where that is the default, and raises `ValueError`; ``limits`` are pydantic's (``ge``,
    ``min_length``, ...).
    """
    spelled = tuple(flags.split())
    long = next((flag.removeprefix("--") for flag in spelled if flag.startswith("--")), "")
    if not long and True in (env, off):
        raise ValueError("env=True and off=True need a long flag that is spelled out")
    name = "LLAMA_ARG_" + long.replace("-", "_").upper() if env is True else env or ""
    negations = ("--no-" + long,) if off is True else off or ()
    known = {**dict.fromkeys(negations, False), **(constants or {})}
    made = Option(
        spelled, name, known, metavar, text, repeat, secret, is_path, replaces, forms or {}, n_words, env_forms or {}
    )
    info: FieldInfo = cast(Any, Field)(default, **limits)
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
    """The docstring of each field, its bases' too; "" where there is no source, since only bytecode is installed. Few
    commands show them; pydantic would read them at each start."""
    found = dict.fromkeys(model.model_fields, "")
    for owner in reversed(model.__mro__[: model.__mro__.index(SettingsModel)]):
        try:
            (made,) = ast.parse(inspect.getsource(owner)).body
        except OSError:
            continue
        assert isinstance(made, ast.ClassDef)
        for field_, text in pairwise(made.body):
            match field_, text:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[key] = inspect.cleandoc(said)
    return found


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One row of the table."""

    owner: type[SettingsModel]
    section: Section
    key: str
    option: Option
    group: str
    default: Any
    is_switch: bool  # its flags take no value

    @property
    def description(self) -> str:
        """What it does."""
        return descriptions(self.owner)[self.key]

    @property
    def flags(self) -> tuple[str, ...]:
        """Spellings that take a value, or switch on."""
        return (*(self.option.flags or ("--" + self.key.replace("_", "-"),)), *self.option.forms)

    @property
    def constants(self) -> Mapping[str, Any]:
        """Spellings without a value and what they set."""
        if self.is_switch and not self.option.flags:
            return {**self.option.constants, "--no-" + self.key.replace("_", "-"): False}
        return self.option.constants

    @property
    def negatable(self) -> bool:
        """Whether llama-server's ``LLAMA_ARG_NO_*`` form exists (llama.cpp common/arg.cpp)."""
        return self.is_switch and False in self.constants.values()


def _entry(section: Section, owner: type[SettingsModel], key: str, info: FieldInfo) -> OptionRow:
    found = next(item for item in info.metadata if isinstance(item, Option))
    if any(kind in (FilePath, Place) for kind in get_args(info.annotation)):
        found = replace(found, is_path=True, metavar=found.metavar or "FILE")
    lineage = [cls for cls in owner.__mro__ if issubclass(cls, SettingsModel)]
    group = next(cls.group for cls in lineage if key in inspect.get_annotations(cls))
    switch = info.annotation is bool or (info.annotation == (bool | None))
    return OptionRow(owner, section, key, found, group, info.get_default(call_default_factory=True), switch)


class Table:
    """Every option, found by field, by flag and by variable."""

    def __init__(self, server: type[SettingsModel], model: type[SettingsModel]) -> None:
        owners: dict[Section, type[SettingsModel]] = {"server": server, "model": model}
        self.entries = {
            (section, key): _entry(section, owner, key, info)
            for section, owner in owners.items()
            for key, info in owner.model_fields.items()
        }

    def keys(self, section: Section) -> list[str]:
        """The field names of one section."""
        return [key for owner, key in self.entries if owner == section]

    @cached_property
    def by_flag(self) -> dict[str, OptionRow]:
        """Every spelling on the command line."""
        return {flag: entry for entry in self for flag in (*entry.flags, *entry.constants)}

    @cached_property
    def by_env(self) -> dict[str, OptionRow]:
        """llama-server's variables that set something here."""
        return {name: entry for entry in self for name in (entry.option.env, *entry.option.env_forms) if name}

    def __iter__(self) -> Iterator[OptionRow]:
        return iter(self.entries.values())


def nearest(word: str, known: list[str], otherwise: str) -> str:
    """``; did you mean 'x'?`` for the most similar known word, else `otherwise`."""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    found.sort(key=lambda name: sorted(name) != sorted(word.lower()))  # swapped letters are the likeliest slip
    return f"; did you mean '{by_lower[found[0]]}'?" if found else otherwise
