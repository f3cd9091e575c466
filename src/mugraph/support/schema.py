"""The form of the JSON records that files hold, checked before anything is computed with their entries."""

from __future__ import annotations

from typing import Any

_LARGEST = 1e300
"""Numbers beyond, infinite ones and NaN among them, are none that was measured or counted."""


def expect(value: Any, form: Any, where: str) -> None:
    """Raise TypeError, naming the entry, unless a JSON value has a form.

    A type is the form of its values (`float` of all finite numbers), None of null, a tuple of what has one of its forms, [form]
    of lists, {str: form} of objects with any names, and {name: form, ...} of objects that have at least these.
    """
    if isinstance(form, tuple):
        if not any(_has(value, one, where) for one in form):
            raise TypeError(f"{where} is {type(value).__name__}")
    elif isinstance(form, list):
        _expect_type(value, list, where)
        for number, item in enumerate(value):
            expect(item, form[0], f"{where}[{number}]")
    elif isinstance(form, dict):
        _expect_type(value, dict, where)
        for name, inner in ((name, form[str]) for name in value) if str in form else form.items():
            if name not in value:
                raise TypeError(f"{where}.{name} is missing")
            expect(value[name], inner, f"{where}.{name}")
    elif form is None:
        _expect_type(value, type(None), where)
    elif form in (int, float):
        _expect_type(value, int if form is int or type(value) is int else float, where)
        if not abs(value) <= _LARGEST:
            raise TypeError(f"{where} is not finite")
    else:
        _expect_type(value, form, where)


def _has(value: Any, form: Any, where: str) -> bool:
    try:
        expect(value, form, where)
    except TypeError:
        return False
    return True


def _expect_type(value: Any, kind: type, where: str) -> None:
    if type(value) is not kind:
        raise TypeError(f"{where} is {type(value).__name__}, not {kind.__name__}")
