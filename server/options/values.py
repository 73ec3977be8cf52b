"""Types of option values. They accept llama-server's spellings of flags as well as YAML's own types."""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from server.engine.request import SAMPLER_LETTERS, SAMPLERS, sampler_named
from server.errors import ConfigError, short, without_credentials
from server.hub.names import Reference, is_registry
from server.pool.spec import MetadataOverride, ScaledFile, TensorOverride
from server.pool.tensor_patterns import check_pattern

TRUE = ("on", "enabled", "true", "1")  # llama.cpp common/arg.cpp, is_truthy and is_falsey
FALSE = ("off", "disabled", "false", "0")


def read_bool(value: object) -> bool:
    """``true``/``1``/``on``/``enabled`` and their opposites."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ValueError("should be true or false (also on/off, enabled/disabled, 1/0)")


def read_switch(value: object) -> object:
    """on, off or auto; YAML reads a bare ``on`` as true."""
    text = str(value).strip().lower()
    if text in TRUE:
        return "on"
    if text in FALSE:
        return "off"
    return "auto" if text in ("auto", "-1") else value


def read_number(value: object) -> object:
    """Refuse ``true`` where a number belongs: Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def without_zero(value: int) -> None:
    """Refuse 0 where only -1 and positive numbers mean something."""
    if value == 0:
        raise ValueError("should be -1 or at least 1")


def split_list(text: str) -> list[str]:
    """Parts between commas, stripped, empty ones dropped; quotes protect a comma, as in CSV (parse_csv_row)."""
    try:
        parts = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # a new line outside of quotes
        raise ConfigError(f"a list should be on one line, not {text[:40]!r}") from None
    return [part.strip() for part in parts if part.strip()]


def read_samplers(value: object) -> object:
    """``top_k;temperature`` or a list of names; kebab-case and llama-server's short names are understood."""
    if not isinstance(value, (str, list, tuple)):
        raise ValueError("should be a list of sampler names")
    names = [name for name in value.split(";") if name] if isinstance(value, str) else value
    found = [sampler_named(str(name)) for name in names]
    if None in found:
        raise ValueError(f"unknown sampler '{names[found.index(None)]}'; known: {', '.join(SAMPLERS)}")
    return tuple(found)


def read_sampler_chars(value: object) -> object:
    """``edskypmxt``: one letter for each sampler."""
    unknown = [letter for letter in str(value) if letter not in SAMPLER_LETTERS]
    if unknown:
        letters = ", ".join(f"{letter} = {name}" for letter, name in SAMPLER_LETTERS.items())
        raise ValueError(f"unknown letter '{unknown[0]}'; known: {letters}")
    return str(value)


def _bias(item: object) -> tuple[int, float]:
    match item:
        case str() if found := re.fullmatch(r"\s*(\d+)\s*([+-])\s*([0-9.eE+-]+|inf)\s*", item):
            return int(found[1]), float(found[2] + found[3])
        case (int() as token, int() | float() | str() as bias) if token >= 0 and not math.isnan(float(bias)):
            return token, float(bias)
    raise ValueError("should be TOKEN_ID+BIAS or TOKEN_ID-BIAS, as in 15043+1")


def read_logit_bias(value: object) -> object:
    """``15043+1`` (several with commas), a list of those or of pairs, or a mapping of token id to bias."""
    if isinstance(value, dict):
        value = list(value.items())
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError("should be TOKEN_ID+BIAS, or a mapping of token id to bias")
    return tuple(_bias(item) for item in items)


def read_json_object(value: object) -> object:
    """Return a JSON object as text, or a mapping."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"should be a JSON object: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("should be a JSON object")
    return value


def unescape(text: str) -> list[str]:
    r"""``\n``, ``\t`` and the like in a flag become the character, as llama-server does (string_process_escapes)."""
    plain = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    return [re.sub(r"\\([nrt'\"\\])", lambda match: plain[match[1]], text)]


def read_breakers(value: object) -> object:
    """Return a list of strings; the word ``none`` empties it, as in llama-server."""
    items = [value] if isinstance(value, str) else value
    if isinstance(items, (list, tuple)) and "none" in items:
        items = items[len(items) - list(reversed(items)).index("none") :]
    return items


_NUMBERS = {"type": "array", "items": {"type": "number"}}
_TEXT_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_ON_OFF = {"anyOf": [{"enum": ["on", "off", "auto"]}, {"type": "boolean"}]}
Bool = Annotated[bool, BeforeValidator(read_bool)]
AutoBool = Annotated[
    bool | None,
    BeforeValidator(lambda value: None if value is None or str(value).lower() == "auto" else read_bool(value)),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"const": "auto"}, {"type": "null"}]}),
]
Switch = Annotated[Literal["on", "off", "auto"], BeforeValidator(read_switch), WithJsonSchema(_ON_OFF)]
OnOff = Annotated[
    Literal["on", "off"],
    BeforeValidator(lambda value: "on" if read_bool(value) else "off"),
    WithJsonSchema({"anyOf": [{"enum": ["on", "off"]}, {"type": "boolean"}]}),
]
Int = Annotated[int, BeforeValidator(read_number)]
Float = Annotated[float, BeforeValidator(read_number)]
AmountText = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),  # of YAML
    WithJsonSchema({"type": ["string", "integer"]}),
]
GpuLayers = Annotated[
    int,
    BeforeValidator(lambda value: {"auto": -1, "all": -2}.get(str(value).strip().lower(), read_number(value))),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": -2}, {"enum": ["auto", "all"]}]}),
]
TextList = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: tuple(split_list(value)) if isinstance(value, str) else value),
    WithJsonSchema(_TEXT_LIST),
]
Proportions = Annotated[
    tuple[float, ...],
    BeforeValidator(lambda value: re.split(r"[,/]+", value) if isinstance(value, str) else value),  # 3,1 or 3/1
    WithJsonSchema({"anyOf": [{"type": "string"}, _NUMBERS]}),
]
Sizes = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    BeforeValidator(lambda value: re.split(r"[,/]+", value) if isinstance(value, str) else value),
    BeforeValidator(lambda value: (value,) if isinstance(value, int) and not isinstance(value, bool) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}, _NUMBERS]}),
]
Samplers = Annotated[tuple[str, ...], BeforeValidator(read_samplers), WithJsonSchema(_TEXT_LIST)]
SamplerChars = Annotated[str, BeforeValidator(read_sampler_chars)]
LogitBias = Annotated[
    tuple[tuple[int, Annotated[float, AllowInfNan()]], ...],
    BeforeValidator(read_logit_bias),
    WithJsonSchema({"type": ["string", "object", "array"]}),
]
JsonObject = Annotated[dict[str, Any], BeforeValidator(read_json_object), WithJsonSchema({"type": "object"})]
Breakers = Annotated[tuple[str, ...], BeforeValidator(read_breakers), WithJsonSchema(_TEXT_LIST)]
FilePath = Annotated[Path, WithJsonSchema({"type": "string"})]
OptionalPath = Annotated[FilePath | None, BeforeValidator(lambda value: value or None)]
"""A path; an empty text means none, not the working directory."""
PathText = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)]
"""A path, an address or a word, as text."""


def is_address(value: object) -> bool:
    """Return whether a text is a URL such as s3://bucket/folder."""
    return isinstance(value, str) and "://" in value


def without_secrets(value: str) -> str:
    """Return a text as others may see it: without the credentials of the address that it is."""
    return without_credentials(value) if is_address(value) and not re.search(r"\s", value) else value


Place = Annotated[
    Path | str | None,
    BeforeValidator(lambda value: value if is_address(value) else Path(str(value)) if value else None),
    WithJsonSchema({"type": "string"}),
]
"""A folder, or the address of one elsewhere, which stays a text; an empty text means none."""
MOST_CPUS = 512  # GGML_MAX_N_THREADS


def range_cpus(text: str) -> frozenset[int]:
    """Parse ``lo-hi``; either end may be omitted. Raises ValueError."""
    found = re.fullmatch(r"(\d*)-(\d*)", text)
    if found is None:
        raise ValueError(f"'{text}' is not a CPU range such as 0-3 (0-0 for one CPU)")
    low, high = int(found[1] or 0), int(found[2] or MOST_CPUS - 1)
    if not low <= high < MOST_CPUS:
        raise ValueError(f"'{text}' is not a range within 0 to {MOST_CPUS - 1}")
    return frozenset(range(low, high + 1))


def mask_cpus(text: str) -> frozenset[int]:
    """Parse a hexadecimal mask whose lowest bit is CPU 0. Raises ValueError."""
    found = re.fullmatch(rf"(?:0x)?([0-9a-fA-F]{{1,{MOST_CPUS // 4}}})", text)
    if found is None or not int(found[1], 16):
        raise ValueError(f"'{text}' is not a hexadecimal CPU mask such as 0xf")
    bits = int(found[1], 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


def instance_cpus(ranges: tuple[str, ...], masks: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each instance by range or mask; a single entry applies to all instances."""
    n = max(len(ranges), len(masks))
    pairs = zip_longest(*(sets * n if len(sets) == 1 else sets for sets in (ranges, masks)), fillvalue="")
    return tuple(one_set(by_range, by_mask) for by_range, by_mask in pairs)


def one_set(ranges: str, mask: str) -> frozenset[int]:
    """Return the CPUs of a range, a mask, or both."""
    return (range_cpus(ranges) if ranges else frozenset()) | (mask_cpus(mask) if mask else frozenset())


AUTO, NONE = "auto", "none"
_DEVICE = r"(?!(?:auto|none)\s*(?:,|$))[^,;\s]+"
_DEVICE_SET = re.compile(rf"\s*(?:auto|none|{_DEVICE}(?:\s*,\s*{_DEVICE})*)\s*")
_DEVICES_FORM = (
    "should be names with commas between them, auto or none; for several instances semicolons between the sets, "
    "or a list with one text for each"
)


def read_device_sets(value: object) -> tuple[str, ...]:
    """Parse ``CUDA0,CUDA1`` (one set), ``CUDA0;CUDA1`` or a list (one set per instance). Raises ValueError."""
    items = value.split(";") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise ValueError(_DEVICES_FORM)
    if not all(isinstance(item, str) and _DEVICE_SET.fullmatch(item) for item in items):
        raise ValueError(_DEVICES_FORM)
    return tuple(re.sub(r"\s+", "", item) for item in items)


def device_sets(texts: tuple[str, ...]) -> tuple[tuple[str, ...] | None, ...]:
    """Return the device names of each set: empty for ``none``, None for ``auto``."""
    special: dict[str, tuple[str, ...] | None] = {AUTO: None, NONE: ()}
    return tuple(special[text] if text in special else tuple(text.split(",")) for text in texts)


def _one(sets: tuple[str, ...]) -> tuple[str, ...]:
    if len(sets) > 1:
        raise ValueError("should be one set of devices, with commas between the names")
    return sets


_DEVICES_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
DeviceSets = Annotated[tuple[str, ...], BeforeValidator(read_device_sets), WithJsonSchema(_DEVICES_SCHEMA)]
OneDeviceSet = Annotated[DeviceSets, AfterValidator(_one)]


def check_url(value: str) -> None:
    """Check the http or https URL of a GGUF. Raises ValueError."""
    if not value.startswith(("http://", "https://")):
        raise ValueError("should begin with http:// or https://")


def check_host_pattern(value: str) -> None:
    """Check a name, ``*.name`` or ``*``. Addresses are allowed, too."""
    if value == "*" or re.fullmatch(r"(\*\.)?[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*", value):
        return
    try:
        ip_address(value.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError("should be a host name without a port, such as llm.example.org or *.example.org") from None


def check_registry(value: str) -> None:
    """Check a host name with optional port. Raises ValueError."""
    if not is_registry(value):
        raise ValueError("should be a host such as registry.example.org or localhost:5000")


RepositoryName = Annotated[str, AfterValidator(lambda value: str(Reference.parse(value)) if value else "")]
"""``owner/name[:quantization]`` or a short name."""
MAX_TEXT = 127  # bytes of a key or a text value (llama.h, llama_model_kv_override)
MAX_LAYERS = 10_000
_PLACE_FORM = "should be PATTERN=BUFFER_TYPE, as in exps=CPU"
_METADATA_FORM = "should be KEY=TYPE:VALUE with one of the types int, float, bool, str"
_FILE_KEYS = ("general.architecture", "general.alignment", "split.")
_VOCABULARY = "tokenizer.ggml.model"  # another one than the tokens are made for ends the process
_METADATA_TYPES: Mapping[str, tuple[str, Callable[[str], int | float | str]]] = {
    "int": (r"[+-]?\d{1,18}", int),
    "float": (r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", float),
    "bool": ("true|false", lambda text: text == "true"),
    "str": (r"[^\0]*", str),
}


def tensor_override(text: str) -> TensorOverride:
    """Parse ``PATTERN=BUFFER_TYPE``; the pattern is an ECMAScript regular expression searched in tensor names.

    Raises ValueError, see `check_pattern`.
    """
    pattern, equals, buffer_type = text.rpartition("=")
    if not (equals and pattern and buffer_type):
        raise ValueError(_PLACE_FORM)
    check_pattern(pattern)
    return TensorOverride(pattern, buffer_type)


def metadata_override(text: str) -> MetadataOverride:
    """Parse ``KEY=TYPE:VALUE``. Raises ValueError."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not (equals and colon and key):
        raise ValueError(_METADATA_FORM)
    if len(key.encode()) > MAX_TEXT:
        raise ValueError(f"has a key of more than {MAX_TEXT} bytes")
    if key.startswith(_FILE_KEYS) or key == _VOCABULARY:
        raise ValueError(f"has '{key}', which says how the file is to be read; it can't be overruled")
    if kind not in _METADATA_TYPES:
        raise ValueError(f"has the type '{kind}' for '{key}'; {_METADATA_FORM}")
    pattern, convert = _METADATA_TYPES[kind]
    if not re.fullmatch(pattern, value, re.DOTALL) or len(value.encode()) > MAX_TEXT:
        raise ValueError(f"has '{short(value)}' for '{key}', which is no {kind} (at most {MAX_TEXT} bytes)")
    return MetadataOverride(key, convert(value))


def _unique(items: tuple[str, ...]) -> tuple[str, ...]:
    keys = [metadata_override(item).key for item in items]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"has '{twice}' twice")
    return items


MAX_OVERRIDES = 1024
MetadataOverrides = Annotated[TextList, AfterValidator(_unique)]
MAX_FILES = 256
MAX_SCALE = 1e6  # as in requests
_FILES_FORM = "should be a list of paths, or of mappings of path and scale"


def split_scaled(text: str) -> list[dict[str, str]]:
    """Parse ``FILE:SCALE,...`` of a flag; the last colon separates the scale. Without a colon the scale is empty."""
    pairs = [part.rpartition(":") if ":" in part else (part, ":", "") for part in split_list(text)]
    return [{"path": path, "scale": scale} for path, _, scale in pairs]


def _scaled_files(value: object) -> tuple[ScaledFile, ...]:
    """Parse a path, or a list of paths and of mappings ``{path: ..., scale: 0.5}``."""
    items = [value] if isinstance(value, (str, Path, Mapping)) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError(_FILES_FORM)
    files = []
    for item in items:
        if isinstance(item, Mapping) and {"path"} <= item.keys() <= {"path", "scale"}:
            files.append(ScaledFile(_file_path(item["path"]), _scale(item.get("scale", 1.0))))
        else:
            files.append(item if isinstance(item, ScaledFile) else ScaledFile(_file_path(item)))
    return tuple(files)


def _file_path(value: object) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError(_FILES_FORM)
    return Path(value)


def _scale(value: Any) -> float:
    try:
        scale = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not abs(scale) <= MAX_SCALE:
        raise ValueError(f"should have a number within {-MAX_SCALE:g} and {MAX_SCALE:g} as scale, as in FILE:0.5")
    return scale


_ONE_FILE = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "scale": {"type": "number"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    ]
}
ScaledFiles = Annotated[
    tuple[ScaledFile, ...],
    BeforeValidator(_scaled_files),
    PlainSerializer(lambda files: [{"path": str(file.path), "scale": file.scale} for file in files], when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _ONE_FILE}]}),
    Field(max_length=MAX_FILES),
]
LayerIndex = Annotated[int, Field(ge=-1, le=1 << 20)]
LayerRange = Annotated[
    tuple[LayerIndex, LayerIndex] | None,
    BeforeValidator(lambda value: tuple(value.replace(",", " ").split()) if isinstance(value, str) else value),
    WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
]
ANYWHERE = "*"
MIB = 1024 * 1024
_SITE = re.compile(r"(\*\.)?[\w.-]+|[\da-f:.]+", re.IGNORECASE)


def read_sites(value: object) -> object:
    """Parse off, on (`ANYWHERE`), or host names."""
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in (*TRUE, *FALSE)):
        return (ANYWHERE,) if str(value).strip().lower() in TRUE else ()
    sites = split_list(value) if isinstance(value, str) else value
    if not isinstance(sites, list | tuple):
        return value
    for site in sites:
        if not isinstance(site, str) or not (site == ANYWHERE or _SITE.fullmatch(site)):
            raise ValueError(
                f"should be off, on, or hosts such as example.com, *.example.com or 10.0.0.5, not {site!r}"
            )
    return tuple(str(site).lower().rstrip(".") for site in sites)


SiteNames = Annotated[
    tuple[str, ...],
    BeforeValidator(read_sites),
    WithJsonSchema(
        {"anyOf": [{"type": "boolean"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    ),
]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "draft-simple", "draft-mtp")
_UNSUPPORTED_KINDS = ("draft-eagle3", "draft-dflash", "draft-dspark")


def read_kinds(value: object) -> str:
    """Parse speculation types, separated by commas or a list, into llama-server's notation."""
    items = split_list(value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise ValueError(f"should be auto, none, or some of {', '.join(KINDS)}")
    names = [str(item).strip().lower() for item in items]
    for name in names:
        if name in _UNSUPPORTED_KINDS:
            raise ValueError(
                f"has '{name}', a kind of llama-server that Llamapool does not have: it needs hidden states that the "
                "library's C interface does not give out; use draft-simple"
            )
        if name not in (AUTO, "none", *KINDS):
            raise ValueError(f"has the unknown kind '{name}'; known: auto, none, {', '.join(KINDS)}")
    if len(names) > 1 and (AUTO in names or "none" in names):
        raise ValueError("should be auto or none alone, or a list of kinds")
    return ",".join(name for name in (AUTO, "none", *KINDS) if name in names)


MAX_FILE_CHARS = 1 << 24


def read_text(path: Path | str, start: str = "", remedy: str = "check the path") -> str:
    """Return the text of a file that an option names. Raises ConfigError; its message begins with `start`."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except FileNotFoundError:
        reason = "no such file"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start})"
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    else:
        if len(text) <= MAX_FILE_CHARS:
            return text
        reason = f"is not a text file of at most {MAX_FILE_CHARS} characters"
    raise ConfigError(f"{start}{path}: {reason}; {remedy}")
