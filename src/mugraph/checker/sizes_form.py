"""The form of a certificate for all sizes: its entries, their types, and that what it says of its inputs is of one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mugraph.checker.saved_files import Json, Rejected, require_format, sizes_said

FORMAT = 1
Kinds = tuple[type, ...]
_NOTHING = type(None)
_CERTIFICATE: Mapping[str, Kinds] = {
    "format": (int,), "claim": (str,), "version": (str,), "dimensions": (list,), "places": (list,), "inputs": (list,),
    "arguments": (list,), "max_error": (float,), "error_bound": (float,), "parts": (list,),
}  # fmt: skip
_DIMENSION: Mapping[str, Kinds] = {"name": (str,), "low": (int,), "high": (int,), "multiple_of": (int,)}
_PART: Mapping[str, Kinds] = {
    "ranges": (dict,), "cuts": (list,), "cutoffs": (dict, _NOTHING), "left": (dict, _NOTHING), "right": (dict, _NOTHING),
    "tests": (list,),
}  # fmt: skip
_CUTOFF: Mapping[str, Kinds] = {"first": (int,), "count": (int,)}
_TEMPLATE: Mapping[str, Kinds] = {"nodes": (list,), "outputs": (list,)}
_TEST: Mapping[str, Kinds] = {"sizes": (dict,), "left": (dict,), "right": (dict,), "certificate": (dict,)}


def declared_in(document: Json) -> dict[str, range]:
    """The sizes of each dimension of a certificate, by name. Raises Rejected, naming the entry that is at fault, for what does
    not have the form of one, or says two things of its inputs."""
    require_format("the certificate: format", document.get("format"), FORMAT)
    _check_entries("the certificate", document, _CERTIFICATE)
    for dimension in document["dimensions"]:
        _check_entries("dimensions", dimension, _DIMENSION)
    for part in document["parts"]:
        _check_part(part)
    declared = dict(map(_dimension, document["dimensions"]))
    if not declared or len(declared) != len(document["dimensions"]):
        raise Rejected("dimensions are none, or have one name twice")
    _check_shapes("inputs", document["inputs"], declared)
    for part in document["parts"]:
        _check_shapes("cuts", part["cuts"], declared)
    _check_arguments(document["arguments"], document["inputs"])
    _check_places(document["places"], document["arguments"], document["inputs"])
    if {name for shape in document["inputs"] for name in shape if isinstance(name, str)} != declared.keys():
        raise Rejected("dimensions: one is no input's")
    return declared


def _dimension(dimension: Json) -> tuple[str, range]:
    try:
        return dimension["name"], sizes_said(dimension)
    except Rejected as refusal:
        raise Rejected(f"dimensions: {refusal}") from None


def _check_entries(what: str, value: Any, kinds: Mapping[str, Kinds]) -> None:
    if type(value) is not dict:
        raise Rejected(f"{what}: one is no object")
    if other := value.keys() ^ kinds.keys():
        raise Rejected(f"{what}: {min(other)} is missing, or none of a certificate for all sizes")
    for name, of in kinds.items():
        _check_type(f"{what}: {name}", value[name], of)


def _check_type(what: str, value: Any, kinds: Kinds) -> None:
    if type(value) not in kinds:
        raise Rejected(f"{what} is no {' or '.join(kind.__name__ for kind in kinds if kind is not _NOTHING)}")


def _check_part(part: Any) -> None:
    """Raise Rejected, naming the entry, for what is no part of a certificate."""
    _check_entries("parts", part, _PART)
    for sizes in part["ranges"].values():
        _check_all("parts: ranges", sizes, lambda number: type(number) is int, 3)
    for cutoff in (part["cutoffs"] or {}).values():
        _check_entries("parts: cutoffs", cutoff, _CUTOFF)
    for side in ("left", "right"):
        if part[side] is not None:
            _check_entries(f"parts: program {side} with names for sizes", part[side], _TEMPLATE)
    for test in part["tests"]:
        _check_entries("parts: tests", test, _TEST)
        for size in test["sizes"].values():
            _check_type("parts: tests: sizes: one", size, (int,))


def _check_all(what: str, values: Any, is_one: Callable[[Any], bool], count: int | None = None) -> None:
    """Raise Rejected for what is no list, of so many where that is said, of which each is as it should be."""
    if type(values) is not list or (count is not None and len(values) != count) or not all(map(is_one, values)):
        raise Rejected(f"{what}: {values!r} is not of the form it is saved in")


def _check_shapes(what: str, shapes: Sequence[Any], declared: Mapping[str, range]) -> None:
    for shape in shapes:
        _check_all(what, shape, lambda size: size in declared if isinstance(size, str) else type(size) is int and size >= 1)


def _is_key(value: Any) -> bool:
    return type(value) in (int, str)


def _check_arguments(arguments: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise Rejected unless these are ways to the arguments that the first inputs are, in the order of calls."""
    for way in arguments:
        _check_all("arguments", way, _is_key)
    first = [way[0] for way in arguments if way]
    if not len(first) == len(arguments) == len({*map(tuple, arguments)}) <= len(inputs):
        raise Rejected("arguments: one has no position or name, or stands there twice, or they are more than there are inputs")
    if len({*map(type, first)}) > 1 or first != sorted(first):
        raise Rejected("arguments are not in the order of their positions, or of their names")


def _check_places(places: Sequence[Any], arguments: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise Rejected unless places are those at which inputs have names for sizes: of arguments, and of no other input."""
    said: dict[tuple[int, int], Any] = {}
    for place in places:
        _check_all("places", place, _is_key, 3)
        argument, position, name = place
        number = arguments.index([argument]) if [argument] in arguments else -1
        rank = len(inputs[number]) if number >= 0 else 0
        if type(position) is not int or not -rank <= position < rank or (number, position % rank) in said:
            raise Rejected(f"places: {place} is no dimension of an argument, or stands there twice")
        said[number, position % rank] = name
    shapes = ((number, enumerate(shape)) for number, shape in enumerate(inputs))
    if said != {(number, position): size for number, shape in shapes for position, size in shape if isinstance(size, str)}:
        raise Rejected("places are not those at which inputs have names for sizes")
