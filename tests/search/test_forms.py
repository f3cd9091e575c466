"""The best form of a program is found from the form in which it is written, where that takes algebra and several kernels."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.devices import device_for
from mugraph.search import Options, search
from mugraph.testing.forms import CASES

from .programs import outputs

H100 = device_for("cuda:sm_90")

FAST = (
    "two products",
    "products under a function",
    "an adapted weight",
    "rows scaled after a product",
    "a number after a product",
    "gates before and after",
    "a norm before a narrow product",
    "a chain that narrows",
    "linear attention",
    "a product scaled and added",
)
"""One or two of every construct."""

PATIENT = Options(closure_seconds=60, cut_seconds=150, finer_tier_seconds=120)
"""Times that end nothing on machines that are fifteen times as slow."""


def assert_found(name: str) -> None:
    """What is found from the program as it is written takes no longer than what is found from the form chosen by hand."""
    case = CASES[name]
    written, chosen = (search(case.graph(form), H100, options=PATIENT).candidates[0].cost for form in (case.written, case.chosen))
    assert written <= chosen * (1 + 1e-9)


def test_there_are_many_of_every_construct() -> None:
    constructs = [case.construct for case in CASES.values()]
    assert len(constructs) == 41
    assert all(constructs.count(construct) >= 6 for construct in set(constructs))
    assert {CASES[name].construct for name in FAST} == set(constructs)


@pytest.mark.parametrize("name", CASES)
def test_both_forms_compute_the_same(name: str) -> None:
    case = CASES[name]
    both = (outputs(case.graph(form, divisor=64)) for form in (case.written, case.chosen))
    for written, chosen in zip(*both, strict=True):
        np.testing.assert_allclose(written, chosen, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", FAST)
def test_the_form_chosen_by_hand_is_found(name: str) -> None:
    assert_found(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_every_form_chosen_by_hand_is_found(name: str) -> None:
    assert_found(name)
