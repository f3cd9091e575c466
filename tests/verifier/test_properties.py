"""Properties are read from text, and refused when they say nothing or something false."""

from __future__ import annotations

import pytest

from mugraph.errors import InvalidInput
from mugraph.verifier.properties import KNOWN, LAWS, Property, known_properties


def test_what_is_known_holds_in_float64() -> None:
    laws, known = known_properties()
    assert [entry.text for entry in (*laws, *known)] == [*LAWS, *KNOWN]


def test_variables_conditions_and_what_reductions_leave_alone() -> None:
    scaled = Property.parse("max(c * x + y) == c * max(x) + y if c > 0")
    assert scaled.variables == {"c", "x", "y"}
    assert scaled.positive == {"c"}
    assert scaled.constant == {"c", "y"}
    assert scaled.reduces
    assert not Property.parse("relu(relu(x)) == relu(x)").constant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("relu(x) == x", "does not hold"),
        ("max(x * y) == max(x) * y", "does not hold"),
        ("sum(x) == x", "does not hold"),
        ("sum(x * 0 + 1) == 1", "does not hold"),
        ("sum(x * 0 + 1) == 8", "does not hold"),
        ("relu(c * x) == c * relu(x)", "does not hold"),
        ("log(-x) == log(-x) if x > 0", "undefined"),
        ("relu(x", "no equation"),
        ("relu(x)", "no equation of two sides"),
        ("x == y == x", "no equation of two sides"),
        ("f(x) == x", "no tensor expression"),
        ("relu(x, x) == x", "no tensor expression"),
        ("matmul(x, y) == x", "no tensor expression"),
        ("x ** 2 == x * x", "no tensor expression"),
        ("__import__('os').system('true') == x", "no tensor expression"),
        ("True == x", "no tensor expression"),
        ("relu(x) == relu(x) if x < 0", "condition"),
    ],
)
def test_what_is_no_property_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Property.parse(text)
