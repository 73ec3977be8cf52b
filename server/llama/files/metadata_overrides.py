"""Values that overrule the file's: ``llama_model_params.kv_overrides``."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

from server.errors import ModelFailed
from server.llama.files.gguf_header import GgufHeader
from server.llama.library import C
from server.pool.spec import MetadataOverride

_INT, _FLOAT, _BOOL, _STR = range(4)  # enum llama_model_kv_override_type
_INTEGERS = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})
_TYPES = {_INT: _INTEGERS, _FLOAT: frozenset({"f32", "f64"}), _BOOL: {"bool"}, _STR: {"string"}}
_NAMES = ("int", "float", "bool", "str")
_MOST = (1 << 31) - 1  # the library keeps whole numbers in 32 bits and cuts longer ones


def _kind(value: object) -> int:
    if isinstance(value, bool):
        return _BOOL
    return _INT if isinstance(value, int) else _FLOAT if isinstance(value, float) else _STR


def overruled(model: str, header: GgufHeader, overrides: Sequence[MetadataOverride]) -> GgufHeader:
    """`header` as the library will see it. Raises `ModelFailed` for values of another type than the file's: the
    library would keep the file's."""
    if not overrides:
        return header
    for each in overrides:
        kind = _kind(each.value)
        there = header.types.get(each.key)
        if there is not None and there not in _TYPES[kind]:
            raise ModelFailed(model, f"override_kv: '{each.key}' is of type {there} in the file, not {_NAMES[kind]}")
        if kind == _INT and there is not None and there.startswith("u") and int(each.value) < 0:
            raise ModelFailed(model, f"override_kv: '{each.key}' is {each.value}, less than 0")
        if kind == _INT and not -_MOST <= int(each.value) <= _MOST:
            raise ModelFailed(model, f"override_kv: '{each.key}' is {each.value}, more than 32 bits")
    return replace(header, metadata={**header.metadata, **{each.key: each.value for each in overrides}})


def metadata_array(overrides: Sequence[MetadataOverride]) -> "ctypes.Array[ctypes.Structure]":
    """Return the native array, terminated by an entry with an empty key."""
    array = (C.llama_model_kv_override * (len(overrides) + 1))()
    for entry, each in zip(array, overrides, strict=False):
        entry.tag, entry.key = _kind(each.value), each.key.encode()
        if isinstance(each.value, str):
            entry.value.val_str = each.value.encode()
        else:
            member = {_BOOL: "val_bool", _INT: "val_i64", _FLOAT: "val_f64"}[entry.tag]
            setattr(entry.value, member, each.value)
    found: ctypes.Array[ctypes.Structure] = array
    return found


def without_effect(overrides: Sequence[MetadataOverride], lines: Sequence[str]) -> list[str]:
    """Return the keys that the library never read, or read as another type, according to its log
    (GGUFMeta::validate_override).
    """
    used = [line for line in lines if "Using metadata override" in line]
    return [each.key for each in overrides if not any(f" '{each.key}' = " in line for line in used)]
