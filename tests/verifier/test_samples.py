"""Where float64 is dear, a sample of slices is compared, which faults of kernels do not escape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program
from mugraph.results.summary import floats_text
from mugraph.verifier import FloatReport, float_check, float_checks, samples
from mugraph.verifier.float_checks import random_inputs
from mugraph.verifier.reference import Reference, Widening
from mugraph.verifier.samples import affordable, chosen

ROWS, COLUMNS = 96, 160


@pytest.fixture(autouse=True)
def dear(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of ten thousand elements take long, and a sample has 32 positions along an axis."""
    monkeypatch.setattr(float_checks, "_WHOLE", 1e4)
    monkeypatch.setattr(float_checks, "_SAMPLED", 0.0)
    monkeypatch.setattr(samples, "LEAST", 32)
    float_checks._known.cache_clear()
    yield
    float_checks._known.cache_clear()


def linear(dtype: DType = DType.FP32) -> Graph:
    written = Program()
    x, w = written.input("x", (ROWS, 64), dtype), written.input("w", (64, COLUMNS), dtype)
    written.output((x @ w).relu())
    return written.graph


def running(program: Graph, fault: Callable[[Array], None] = lambda output: None) -> Callable[..., list[Array]]:
    """A kernel that computes a program in float32, with a fault at standard normal inputs alone."""

    def run(*inputs: Array) -> list[Array]:
        with np.errstate(all="ignore"):
            (output,) = evaluate(program, [array.astype(np.float32) for array in inputs], FloatArithmetic(np.float32))
        if 0.5 < np.std(inputs[0]) < 2 and len({row.tobytes() for row in inputs[0]}) == ROWS:
            fault(output)
        return [output]

    return run


def test_a_sample_is_compared_and_said_to_be_one() -> None:
    report = float_check(running(linear()), linear(), graph=linear())
    assert report.stable
    assert [entry.inputs for entry in report.sampled] == ["input scale 1"]
    (compared,) = report.sampled[0].compared or ()
    assert 100 < compared <= 32 * 32 < report.elements[0] == ROWS * COLUMNS
    said = (
        f"compared with float64: for input scale 1, {compared:,} of 15,360 elements of the output and where results are farthest"
    )
    assert said in floats_text(report)
    again = float_check(running(linear()), linear(), graph=linear())
    assert again == report, "samples are chosen by the seed"
    assert float_check(running(linear()), linear(), seed=1).stable
    assert FloatReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_cheap_programs_are_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_checks, "_WHOLE", 1e6)
    float_checks._known.cache_clear()
    report = float_check(running(linear()), linear())
    assert not report.sampled
    assert "compared with float64" not in floats_text(report)


def wrong(*place: int | slice) -> Callable[[Array], None]:
    def fault(output: Array) -> None:
        output[place] += np.float32(1)

    return fault


def lost(*place: int | slice) -> Callable[[Array], None]:
    def fault(output: Array) -> None:
        output[place] = np.nan

    return fault


def exchanged(output: Array) -> None:
    """Two blocks of rows where each other's should be: each element is one that the output has."""
    output[16:32], output[48:64] = output[48:64].copy(), output[16:32].copy()


FAULTS: dict[str, Callable[[Array], None]] = {
    "an element in the ragged end of a row": wrong(41, COLUMNS - 3),
    "the last column": wrong(slice(None), COLUMNS - 1),
    "the last row": wrong(ROWS - 1),
    "one block": wrong(slice(32, 48), slice(64, 96)),
    "blocks exchanged": exchanged,
    "one lane of eight": wrong(slice(None), slice(5, None, 8)),
    "the first element": wrong(0, 0),
    "one element somewhere": wrong(37, 101),
    "one element that is lost": lost(67, 83),
    "a row that is lost": lost(51),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("baseline", [True, False], ids=["its own function", "operator by operator"])
def test_faults_are_found(fault: Callable[[Array], None], baseline: bool) -> None:
    own = running(linear()) if baseline else None
    for seed in range(5):
        report = float_check(running(linear(), fault), linear(), baseline=own, seed=seed)
        assert not report.stable
        assert "input scale 1" in report.reason


@pytest.mark.parametrize("name", ["the last column", "the last row", "one block", "blocks exchanged", "one lane of eight"])
def test_faults_of_regions_are_found_by_the_sample_alone(name: str) -> None:
    """Where the program itself has the fault, nothing is to be learned from it; its error is what a candidate may make, too."""
    reference = Reference.of(linear())
    for seed in range(20):
        output = np.zeros((ROWS, COLUMNS))
        output[...] = np.arange(ROWS)[:, None]
        before = output.copy()
        FAULTS[name](output)
        places = chosen(reference.all, (32, 32), [6, 5], seed)
        (sampled,), (exact,) = reference.chosen_outputs([output], places), reference.chosen_outputs([before], places)
        assert (sampled != exact).any()


def test_faults_where_slices_repeat_are_found_everywhere() -> None:
    def run(*inputs: Array) -> list[Array]:
        (output,) = running(linear())(*inputs)
        if np.std(inputs[0]) < 0.5:
            output[37, 101] += output.max()
        return [output]

    report = float_check(run, linear())
    assert not report.stable
    assert "input scale 0.001" in report.reason


def test_what_overflows_in_the_program_itself_is_no_fault() -> None:
    program = linear(DType.FP16)

    def run(*inputs: Array) -> list[Array]:
        with np.errstate(over="ignore"):
            return [array.astype(np.float16).astype(np.float32) for array in running(linear())(*inputs)]

    assert float_check(run, program).stable


def test_positions_of_a_sample() -> None:
    places = chosen((1000, 7), (64, 64), [10], seed=0)
    assert places[1].tolist() == [*range(7)]
    assert len(places[0]) == 64
    assert {0, *range(984, 1000)} <= {*places[0].tolist()}
    assert {99, 100} <= {*places[0].tolist()} or {899, 900} <= {*places[0].tolist()}, "where parts of the grid end"
    assert np.diff(places[0]).max() < 2 * 1000 / (64 - 16 - 16 - 1) + 1, "no stretch without one"
    assert affordable((1000, 40), lambda counts: float(counts[0] * counts[1]), 8000.0) == (125, 40)
    assert affordable((1000, 40), lambda counts: 1.0, 0.0) == (32, 32)


@pytest.mark.parametrize("shapes", [((8, 4000), (4000, 96)), ((9, 3000), (3000, 50)), ((4000, 96), (96, 8))])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_of_narrow_matrices_are_exact(shapes: tuple[tuple[int, int], tuple[int, int]], dtype: type) -> None:
    rng = np.random.default_rng(0)
    x: Array = rng.standard_normal(shapes[0]).astype(dtype)
    y: Array = rng.standard_normal(shapes[1]).astype(dtype)
    expected = x.astype(np.float64) @ y.astype(np.float64)
    for left, right in ((x, y), (np.asfortranarray(x), np.asfortranarray(y))):
        np.testing.assert_allclose(Widening().matmul(left, right), expected, rtol=1e-11, atol=1e-11)


def test_records_of_samples_are_of_one_piece() -> None:
    record = float_check(running(linear()), linear()).to_json()
    kind = next(entry for entry in record["inputs"] if entry["compared"])
    for compared in ([0], [ROWS * COLUMNS + 1], [1, 1], []):
        kind["compared"] = compared
        with pytest.raises(InvalidInput, match="no parts of outputs"):
            FloatReport.from_json(record)


def test_inputs_of_standard_kind_all_differ() -> None:
    inputs = random_inputs(linear(), seed=0)
    assert len({row.tobytes() for row in inputs[0]}) == ROWS
