"""Saved results pass an independent check; whatever was changed in them is named, and wrong graphs fail by evaluation."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mugraph.checker
from mugraph.checker import PARTS, CheckReport, Rejected, check_folder, residue_fields
from mugraph.checker.bound import SizeBound, Sizes
from mugraph.checker.float_errors import measure
from mugraph.checker.saved_files import graph_digest
from mugraph.cli import main
from mugraph.errors import MugraphError
from mugraph.frontend.operators.choices import greater
from mugraph.ir import DType, Graph, GraphBuilder, Level, Scalar
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.lower.thread_graphs import construct
from mugraph.results.proof_bindings import printed_again
from mugraph.targets.cpu.machine import Cpu
from mugraph.testing import agree
from mugraph.verifier import FloatReport, float_check, verify_graphs
from mugraph.verifier.certificate import digest
from mugraph.verifier.vectorized_eval import evaluate_batched
from verifier import characters, choices, maxima, parts, scans
from verifier.graphs import (
    attention,
    columns_in_thread_graphs,
    fused_rmsnorm,
    gated_columns,
    linear_with_bias,
    mutants,
    online_attention,
    overlap,
    overlap_of_quotients,
    program,
    rmsnorm,
    rows_for_columns,
    scaled_sums,
    spread_of_rows,
)

Document = dict[str, Any]


def write(
    folder: Path,
    left: Graph,
    right: Graph,
    change: Callable[[dict[str, Document]], None] = lambda files: None,
    floats: FloatReport | None = None,
) -> Path:
    """A folder as `save` writes it, with all hashes made after `change` was applied to its documents."""
    files = {
        "program.json": dict(graph_to_json(left)),
        "graph.json": dict(graph_to_json(right)),
        "certificate.json": replace(verify_graphs(left, right).certificate, floats=floats or in_float32(left, right)).to_json(),
        "report.json": {},
    }
    files = json.loads(json.dumps(files))
    change(files)
    certificate = files["certificate.json"]
    certificate["left"], certificate["right"] = graph_digest(files["program.json"]), graph_digest(files["graph.json"])
    (folder / "sources").mkdir(parents=True)
    contents = {name: json.dumps(document).encode() for name, document in files.items()} | {"sources/kernels.c": b"int x;"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = {"format": 3, "version": "0.0.1", "target": "cpu", "printer": {}, "origin": {}, "files": hashes}
    (folder / "mugraph.json").write_text(json.dumps(manifest))
    return folder


@functools.cache
def in_float32(left: Graph, right: Graph) -> FloatReport:
    """The report on kernels that compute what the graph says, in float32."""

    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(right, [array.astype(np.float32) for array in inputs], FloatArithmetic(np.float32))

    return float_check(run, left, graph=right)


def accepted(folder: Path, **options: Any) -> CheckReport:
    report = check_folder(folder, seed=0, **options)
    assert report.reached
    return report


EQUAL: dict[str, Callable[[], tuple[Graph, Graph]]] = {
    "fused RMSNorm": lambda: (rmsnorm(), fused_rmsnorm()),
    "with thread graphs": lambda: (rmsnorm(), construct(fused_rmsnorm(blocks=4, loop=2))),
    "attention with rescaled accumulators": lambda: (attention(), construct(online_attention(loop=4))),
    "an operand brought past a loop": lambda: (
        program(lambda x, w, b: x @ w + b, (3, 40), (40, 4), (4,)),
        linear_with_bias(loop=20),
    ),
    "a computed constant inside a loop and after it": lambda: (
        program(lambda x: (x * Scalar.of(2.25)).sum(-1, keepdim=True), (2, 8)),
        scaled_sums(),
    ),
    "roots and constants": lambda: (
        program(lambda x, y: x.sqrt() * y.sqrt() / 4, (3,), (3,)),
        program(lambda x, y: (x * y / 8).sqrt() * Scalar.parse("sqrt(1/2)"), (3,), (3,)),
    ),
    "roots that square back": lambda: (
        program(lambda x, y: x.sqrt() / (4 * y).sqrt() / y.sqrt() * x.sqrt(), (3,), (3,)),
        program(lambda x, y: x / (2 * y), (3,), (3,)),
    ),
    "maxima of maxima": lambda: (
        program(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), (3, 8)),
        program(stable_softmax_in_two_steps, (3, 8)),
    ),
    "roots of means, in thread graphs": lambda: (
        program(lambda x, w: x / ((x * x / 6).sum(-1, keepdim=True) * w).sqrt(), (4, 4), (4, 1)),
        means_in_blocks(),
    ),
    "a loop over columns": lambda: (
        program(lambda x, w, v, b: (x @ w + b).silu() * (x @ v), (4, 4), (4, 4), (4, 4), (4,)),
        construct(gated_columns(blocks=2)),
    ),
    "a thread graph inside a loop over columns": lambda: (
        program(lambda x, y: x.exp().square() * y + y, (4, 4), (4, 4)),
        columns_in_thread_graphs(loop=4),
    ),
    "functions of fractions of exponentials": lambda: (
        program(lambda x, w: (x.exp() / x.exp().sum(-1, keepdim=True)).silu() @ w, (2, 24), (24, 2)),
        program(lambda x, w: ((x + 1).exp() / (x + 1).exp().sum(-1, keepdim=True)).silu() @ (2 * w) / 2, (2, 24), (24, 2)),
    ),
    "roundings": lambda: (
        program(lambda x, w: (x - x.rounded("bf16")) @ w + x.rounded("fp16") @ w, (3, 4), (4, 4)),
        program(lambda x, w: x @ w - (x.rounded("bf16") - x.rounded("fp16")) @ w, (3, 4), (4, 4)),
    ),
    "roots of squares": lambda: (
        program(lambda x: (x / 1600).sqrt() * (x * 49 / 9).sqrt(), (3,)),
        program(lambda x: x.sqrt() * x.sqrt() * Scalar.parse("7/120"), (3,)),
    ),
    "roots of primes for which there are no fields": lambda: (
        program(lambda x: x * (73 * x.sum(-1, keepdim=True) / 511 / 89).sqrt(), (3, 4)),
        program(lambda x: x * x.sum(-1, keepdim=True).sqrt() / Scalar.parse("sqrt(623)"), (3, 4)),
    ),
    "such roots in functions with properties": lambda: (
        program(lambda x: (x * Scalar.parse("sqrt(1009/89)")).relu(), (3,)),
        program(lambda x: x.relu() * Scalar.parse("sqrt(1009)") / Scalar.parse("sqrt(89)"), (3,)),
    ),
    "such roots beside roots that square back": lambda: (
        program(lambda x: (x / 1009).sqrt() * x.sqrt(), (3,)),
        program(lambda x: x * Scalar.parse("sqrt(1/1009)"), (3,)),
    ),
    "sums over many rows of shares": lambda: (
        program(overlap, (400, 5), (400, 5)),
        program(overlap_of_quotients, (400, 5), (400, 5)),
    ),
    "opaque functions and views": lambda: (
        program(lambda x, y: (x.repeat(0, 2) @ y).silu().exp(), (3, 4), (4, 5)),
        program(lambda x, y: (y.transpose(0, 1) @ x.transpose(0, 1)).transpose(0, 1).repeat(0, 2).silu().exp(), (3, 4), (4, 5)),
    ),
}


def stable_softmax_in_two_steps(x: ProgramTensor) -> ProgramTensor:
    """Numerator and denominator shifted by the same maximum, computed in two ways."""
    above = (x - x.reshape(3, 2, 4).amax(-1).amax(-1, keepdim=True)).exp()
    return above / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)


def means_in_blocks() -> Graph:
    """x / sqrt(mean) with the factor 1/6 after the sum, two rows in each block, and the product in a thread graph of its own."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (4, 4), DType.FP32), kernel.input("w", (4, 1), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=1)
    xs, ws = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate((x, w)))
    total = block.add("sum", block.add("square", xs), dim=1, size=4)
    thread = GraphBuilder(Level.THREAD, block=(2,))
    tiles = [thread.iterator(number, block.tensor(value), (0,), None) for number, value in enumerate((total, ws))]
    product = thread.add("mul", thread.add("mul", *tiles), thread.constant(Scalar.of(Fraction(1, 6)), DType.FP32))
    saved = thread.add("output_saver", product, omap=(0,))
    (radicand,) = block.graph_defined(thread.build([saved]), [total, ws])
    result = block.add("output_saver", block.add("div", xs, block.add("sqrt", radicand)), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([result]), [x, w]))


def test_errors_are_those_of_results_where_a_root_is_taken_of_an_input(tmp_path: Path) -> None:
    """Every row of the product has a NaN where half of the variances are negative."""

    def normalized(x: ProgramTensor, variance: ProgramTensor, w: ProgramTensor) -> ProgramTensor:
        return (x / (variance + 1e-5).sqrt()) @ w

    graph = program(normalized, (4, 32), (32,), (32, 8))
    assert 0 < accepted(write(tmp_path / "saved", graph, graph)).float_error < 1e-5


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_pass_with_the_bound_asked_for(tmp_path: Path, name: str) -> None:
    report = accepted(write(tmp_path / "result", *EQUAL[name]()))
    assert report.error_bound is not None
    assert report.error_bound <= 2**-40


def test_digests_are_those_of_the_verifier() -> None:
    assert graph_digest(dict(graph_to_json(fused_rmsnorm()))) == digest(fused_rmsnorm())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "result", rmsnorm(), fused_rmsnorm())


@pytest.mark.parametrize("name", ["program.json", "graph.json", "certificate.json", "report.json", "sources/kernels.c"])
def test_changed_and_missing_files_are_named(saved: Path, name: str) -> None:
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content + b" ")
    with pytest.raises(Rejected, match=f"{name}: changed after it was saved"):
        check_folder(saved)
    (saved / name).unlink()
    with pytest.raises(Rejected, match=f"{Path(name).name}: cannot be read"):
        check_folder(saved)


def test_sources_that_are_not_listed_are_named(saved: Path) -> None:
    (saved / "sources" / "more.c").write_text("int y;")
    with pytest.raises(Rejected, match=r"sources/more\.c: the manifest does not list it"):
        check_folder(saved)


@pytest.mark.parametrize("side", ["program.json", "graph.json"])
def test_graphs_that_the_certificate_does_not_speak_of_are_named(tmp_path: Path, side: str) -> None:
    folder = write(tmp_path / "result", rmsnorm(), fused_rmsnorm())
    other = json.dumps(graph_to_json(fused_rmsnorm(blocks=4))).encode()
    (folder / side).write_bytes(other)
    manifest = json.loads((folder / "mugraph.json").read_text())
    manifest["files"][side] = hashlib.sha256(other).hexdigest()
    (folder / "mugraph.json").write_text(json.dumps(manifest))
    with pytest.raises(Rejected, match=f"{side}: not the graph that the certificate speaks of"):
        check_folder(folder)


def body(files: dict[str, Document]) -> Document:
    nodes = files["graph.json"]["graph"]["nodes"]
    found: Document = next(node["body"] for node in nodes if "body" in node)
    return found


def swap_operator(files: dict[str, Document]) -> None:
    next(node for node in body(files)["nodes"] if node["op"] == "div")["op"] = "mul"


def swap_loop_part(files: dict[str, Document]) -> None:
    """The gain of another iteration: nothing but evaluation can see it."""
    gain = next(node for node in body(files)["nodes"] if node["op"] == "input_iterator" and node["attributes"]["operand"] == 1)
    gain["attributes"]["operand"], gain["attributes"]["fmap"] = 1, 0
    constant = next(node for node in body(files)["nodes"] if node["op"] == "constant")
    constant["attributes"]["value"] = {"exact": "1/13"}


def accept_anyway(files: dict[str, Document]) -> None:
    swap_operator(files)
    files["certificate.json"].update(accepted=True, error_bound=1e-30, reason="")


def test_opposite_radicands_are_told_apart(tmp_path: Path) -> None:
    left, right = (program(lambda x, sign=sign: (x * sign).sqrt(), (3,)) for sign in (2, -2))
    folder = write(
        tmp_path / "result", left, right, lambda files: files["certificate.json"].update(accepted=True, error_bound=1e-20)
    )
    with pytest.raises(Rejected, match="found by evaluation"):
        check_folder(folder, seed=0)


ROOTS: dict[str, tuple[Callable[[ProgramTensor], ProgramTensor], Callable[[ProgramTensor], ProgramTensor]]] = {
    "absolute value": (lambda x: x.square().sqrt(), lambda x: x),
    "negative": (lambda x: x.square().sqrt(), lambda x: -x),
    "absolute value in a function": (lambda x: x.square().sqrt().silu(), lambda x: x.silu()),
    "half of the law": (lambda x: x.sqrt() * x.sqrt() * x.sqrt(), lambda x: x.sqrt()),
    "another maximum": (lambda x: x.amax(-1), lambda x: x.reshape(2, 2).amax(-1).sum(-1)),
}


def replacing(entries: Document) -> Callable[[dict[str, Document]], None]:
    return lambda files: files["certificate.json"].update(entries)


def test_what_is_equal_by_properties_of_functions_passes_with_a_bound(tmp_path: Path) -> None:
    left = program(lambda x, w: (x * 3).relu() @ w, (4, 3), (3, 3))
    right = program(lambda x, w: (x.relu() @ w) * 3, (4, 3), (3, 3))
    accepted(write(tmp_path / "result", left, right, floats=in_float32(rmsnorm(), rmsnorm())))


@pytest.mark.parametrize("name", ["a negative scale", "a divisor that may be negative", "maximum of squares", "not rounded"])
def test_what_no_property_makes_equal_is_rejected(tmp_path: Path, name: str) -> None:
    """Also where the certificate asks for properties."""
    left, right = characters.pair(characters.DIFFERENT[name])
    equal = characters.pair(characters.EQUAL["a scale taken out of relu and a product"])
    difference = verify_graphs(*equal).certificate.to_json()["difference"]
    assert difference["properties"] is True
    for law in (False, True):
        forged = {"accepted": True, "error_bound": 1e-20, "axes": [], "difference": {**difference, "properties": law}}
        folder = write(tmp_path / f"{law}", left, right, replacing(forged), in_float32(rmsnorm(), rmsnorm()))
        with pytest.raises(Rejected, match="found by evaluation"):
            check_folder(folder, seed=0)


@pytest.mark.parametrize("name", ROOTS)
def test_what_no_law_of_roots_and_maxima_makes_equal_is_rejected(tmp_path: Path, name: str) -> None:
    """Also where the certificate asks for the law by which roots square back."""
    left, right = (program(function, (4,)) for function in ROOTS[name])
    squares = program(lambda x: x.sqrt() * x.sqrt(), (4,)), program(lambda x: x, (4,))
    difference = verify_graphs(*squares).certificate.to_json()["difference"]
    assert difference["radicand"] is not None
    for law in (None, difference["radicand"]):
        forged = {"accepted": True, "error_bound": 1e-20, "difference": {**difference, "radicand": law}}
        folder = write(tmp_path / f"{law is None}", left, right, replacing(forged))
        with pytest.raises(Rejected, match="found by evaluation"):
            check_folder(folder, seed=0)


@pytest.mark.parametrize("wrong", ["sqrt(1013)", "sqrt(2018)", "1009", "sqrt(1/1009)", "-sqrt(1009)"])
def test_roots_of_other_primes_are_told_apart(tmp_path: Path, wrong: str) -> None:
    left = program(lambda x: (1009 * x).sqrt(), (3,))
    right = program(lambda x: x.sqrt() * Scalar.parse("sqrt(1009)"), (3,))
    other = dict(graph_to_json(program(lambda x: x.sqrt() * Scalar.parse(wrong), (3,))))
    with pytest.raises(Rejected, match="is not what"):
        accepted(write(tmp_path / "result", left, right, lambda files: files.update({"graph.json": other})))


@pytest.mark.parametrize("name", maxima.EQUAL)
def test_maxima_are_functions_of_sets(tmp_path: Path, name: str) -> None:
    accepted(write(tmp_path / "result", *maxima.graphs(maxima.EQUAL[name]), floats=in_float32(rmsnorm(), rmsnorm())))


@pytest.mark.parametrize("name", maxima.DIFFERENT)
def test_maxima_of_other_sets_are_told_apart(tmp_path: Path, name: str) -> None:
    graphs = maxima.graphs(maxima.DIFFERENT[name])
    squares = program(lambda x: x.sqrt() * x.sqrt(), (4,)), program(lambda x: x, (4,))
    difference = verify_graphs(*squares).certificate.to_json()["difference"]
    for law in (None, difference["radicand"]):
        forged = {"accepted": True, "error_bound": 1e-20, "axes": [], "difference": {**difference, "radicand": law}}
        folder = write(tmp_path / f"{law is None}", *graphs, replacing(forged), in_float32(rmsnorm(), rmsnorm()))
        with pytest.raises(Rejected, match=r"found by evaluation|no test can be evaluated"):
            check_folder(folder, seed=0)


@pytest.mark.parametrize("name", choices.EQUAL)
def test_functions_of_several_operands_give_equals_for_equals(tmp_path: Path, name: str) -> None:
    accepted(write(tmp_path / "result", *choices.graphs(choices.EQUAL[name]), floats=in_float32(rmsnorm(), rmsnorm())))


@pytest.mark.parametrize("name", choices.DIFFERENT)
def test_comparisons_and_choices_that_are_nearly_the_same_are_told_apart(tmp_path: Path, name: str) -> None:
    graphs = choices.graphs(choices.DIFFERENT[name])
    difference = verify_graphs(*choices.graphs(choices.EQUAL["broadcast before and after"])).certificate.to_json()["difference"]
    for law in (False, True):
        forged = {"accepted": True, "error_bound": 1e-20, "axes": [], "difference": {**difference, "properties": law}}
        folder = write(tmp_path / f"{law}", *graphs, replacing(forged), in_float32(rmsnorm(), rmsnorm()))
        with pytest.raises(Rejected, match="found by evaluation"):
            check_folder(folder, seed=0)


@pytest.mark.parametrize("name", scans.EQUAL)
def test_scans_written_in_other_ways_pass(tmp_path: Path, name: str) -> None:
    accepted(write(tmp_path / "result", *scans.graphs(scans.EQUAL[name]), floats=in_float32(rmsnorm(), rmsnorm())))


@pytest.mark.parametrize("name", scans.DIFFERENT)
def test_scans_that_are_others_are_told_apart(tmp_path: Path, name: str) -> None:
    """Whichever axes are said to be parallel."""
    graphs = scans.graphs(scans.DIFFERENT[name])
    difference = verify_graphs(*scans.graphs(scans.EQUAL["functions of it"])).certificate.to_json()["difference"]
    shapes = [node.output.shape for node in graphs[0].inputs()]
    for cut in (None, *range(len(shapes[0]))):
        along = [] if cut is None else [{"size": shapes[0][cut], "inputs": [cut] * len(shapes), "outputs": [cut]}]
        forged = {"accepted": True, "error_bound": 1e-20, "axes": along, "difference": difference}
        folder = write(tmp_path / str(cut), *graphs, replacing(forged), in_float32(rmsnorm(), rmsnorm()))
        with pytest.raises(Rejected, match=r"found by evaluation|an axis|malformed"):
            check_folder(folder, seed=0)


@pytest.mark.parametrize("name", parts.EQUAL)
def test_parts_written_in_other_ways_pass(tmp_path: Path, name: str) -> None:
    accepted(write(tmp_path / "result", *parts.graphs(parts.EQUAL[name]), floats=in_float32(rmsnorm(), rmsnorm())))


@pytest.mark.parametrize("name", parts.DIFFERENT)
def test_parts_that_are_others_are_told_apart(tmp_path: Path, name: str) -> None:
    """By whatever laws, and whichever axes are said to be parallel."""
    graphs = parts.graphs(parts.DIFFERENT[name])
    difference = verify_graphs(*parts.graphs(parts.EQUAL["functions of parts"])).certificate.to_json()["difference"]
    ranks = [len(node.output.shape) for node in graphs[0].inputs()]
    axes = [[dim] * len(ranks) for dim in range(max(ranks))] + [[0, *[None] * (len(ranks) - 1)], [*[None] * (len(ranks) - 1), 0]]
    for number, cut in enumerate([None, *axes]):
        along = [] if cut is None else [{"size": 4, "inputs": cut, "outputs": [0]}]
        forged = {
            "accepted": True,
            "error_bound": 1e-20,
            "axes": along,
            "difference": {**difference, "properties": number % 2 > 0},
        }
        folder = write(tmp_path / str(number), *graphs, replacing(forged), in_float32(rmsnorm(), rmsnorm()))
        with pytest.raises(Rejected, match=r"found by evaluation|an axis|malformed"):
            check_folder(folder, seed=0)


def test_divisions_by_the_same_elements_have_one_denominator() -> None:
    sizes = Sizes()
    x, y = sizes.variables((3, 3)), sizes.variables((3, 3))
    total = sizes.sum(x, 1)

    def turned(value: SizeBound) -> SizeBound:
        return sizes.move([value], lambda arrays: arrays[0].transpose())

    together = sizes.add(turned(sizes.divide(x, total)), sizes.divide(turned(y), turned(total)))
    apart = [
        sizes.add(sizes.divide(x, total), sizes.divide(y, turned(total))),
        sizes.add(sizes.divide(x, total), sizes.divide(y, sizes.sum(x, 1))),
        sizes.add(sizes.divide(x, total), sizes.divide(y, sizes.add(total, total))),
    ]
    assert together.denominator.degree == 1
    assert [each.denominator.degree for each in apart] == [2, 2, 2]


def test_functions_of_several_operands_are_bounded_by_the_largest() -> None:
    sizes = Sizes()
    x, y = sizes.variables((3, 4)), sizes.multiply(sizes.variables((4,)), sizes.variables((4,)))
    assert sizes.shape(sizes.function("f", x, y)) == (3, 4)
    assert (sizes.functions["f"].times, sizes.functions["f"].numerator.degree) == (12, 2)
    sizes.function("f", y, x)
    assert sizes.functions["f"].times == 24


def test_comparisons_that_rounding_decides_are_no_instability() -> None:
    """The muGraph compares the same numbers, rounded in another order; one that compares others is unstable."""
    shapes = ((3, 64), (64, 5))

    def graphs(right: Callable[..., ProgramTensor]) -> tuple[Document, Document]:
        left = program(lambda x, w: greater((x @ w) * 3, 1), *shapes)
        first, second = (json.loads(json.dumps(graph_to_json(graph)))["graph"] for graph in (left, program(right, *shapes)))
        return first, second

    measure(*graphs(lambda x, w: greater(x @ (3 * w), 1)), shapes, random.Random(0))
    with pytest.raises(Rejected, match="unstable"):
        measure(*graphs(lambda x, w: greater((x @ w) * 3, 9)), shapes, random.Random(0))


@pytest.mark.parametrize(("name", "other"), [("floor", "ceil"), ("trunc", "floor"), ("round", "trunc"), ("floor", "round")])
def test_neither_are_jumps_that_rounding_moves(name: str, other: str) -> None:
    shapes = ((3, 64), (64, 5))

    def graphs(right: Callable[..., ProgramTensor]) -> tuple[Document, Document]:
        left = program(lambda x, w: ((x @ w) * 3).apply(name), *shapes)
        first, second = (json.loads(json.dumps(graph_to_json(graph)))["graph"] for graph in (left, program(right, *shapes)))
        return first, second

    measure(*graphs(lambda x, w: (x @ (3 * w)).apply(name)), shapes, random.Random(0))
    with pytest.raises(Rejected, match="unstable"):
        measure(*graphs(lambda x, w: ((x @ w) * 3).apply(other)), shapes, random.Random(0))


@pytest.mark.parametrize("change", [swap_operator, swap_loop_part, accept_anyway])
def test_wrong_graphs_with_hashes_made_anew_fail_by_evaluation(
    tmp_path: Path, change: Callable[[dict[str, Document]], None]
) -> None:
    folder = write(tmp_path / "result", rmsnorm(), fused_rmsnorm(), change)
    with pytest.raises(Rejected, match=r"graph\.json: output 0 is not what program\.json computes"):
        check_folder(folder, seed=0)


@pytest.mark.parametrize(
    ("pair", "axis"), [(spread_of_rows, {"inputs": [0, None]}), (rows_for_columns, {"inputs": [1, 0, None]})]
)
def test_an_axis_at_whose_size_1_a_wrong_graph_is_right_is_rejected(
    tmp_path: Path, pair: Callable[[], tuple[Graph, Graph]], axis: Document
) -> None:
    left, right = pair()
    forged = {"accepted": True, "error_bound": 1e-20, "axes": [axis]}
    folder = write(tmp_path / "result", left, right, lambda files: files["certificate.json"].update(forged))
    with pytest.raises(Rejected, match="an axis is not parallel"):
        check_folder(folder, seed=0)


FORGERIES: dict[str, tuple[Callable[[dict[str, Document]], Any], str]] = {
    "an axis that is summed over": (
        lambda files: files["certificate.json"]["axes"].append({"size": 12, "inputs": [1, 0, 0], "outputs": [None]}),
        "an axis is not parallel",
    ),
    "an axis of one input alone": (
        lambda files: files["certificate.json"].update(axes=[{"size": 12, "inputs": [None, 0, None], "outputs": [None]}]),
        "an axis is not parallel",
    ),
    "a shape that no operator gives": (
        lambda files: body(files)["nodes"][3]["outputs"][0].update(shape=[1, 1]),
        r"graph\.json: operator .* has shape",
    ),
    "a tensor without elements": (
        lambda files: files["program.json"]["graph"]["nodes"][0]["attributes"].update(shape=[0, 12]),
        r"program\.json: operator input has shape",
    ),
    "an operator with a body that is not its own": (
        lambda files: files["graph.json"]["graph"]["nodes"][-1].update(op="square"),
        r"graph\.json: operator 'square': a body belongs to graph_defined",
    ),
    "operands that nobody reads": (
        lambda files: body(files)["nodes"][-1]["inputs"].append([0, 0]),
        r"operator 'output_saver' has 2 operands",
    ),
    "an output of another type": (
        lambda files: files["graph.json"]["graph"]["nodes"][-1]["outputs"][0].update(dtype="fp16"),
        r"has shape \[4, 8\] of fp32, not \[4, 8\] of fp16",
    ),
    "a type that does not exist": (lambda files: body(files)["nodes"][3]["outputs"][0].update(dtype="fp3"), "gives fp3"),
    "a level that is another": (lambda files: body(files).update(level="thread"), "a block graph does not have the form of one"),
    "a program with a loop": (
        lambda files: files["program.json"]["graph"].update(loop=2),
        r"program\.json: a kernel graph does not have the form",
    ),
    "an operator that does not exist": (lambda files: body(files)["nodes"][3].update(op="magic"), "magic"),
    "attributes of the wrong type": (lambda files: body(files).update(loop="three"), "loop is a positive integer"),
    "no nodes": (lambda files: files["graph.json"]["graph"].pop("nodes"), "not of the form it is saved in, by its keys"),
    "another format": (lambda files: files["graph.json"].update(mugraph=9), r"graph\.json: not a graph of format 1"),
    "nothing claimed": (lambda files: files["certificate.json"].update(error_bound=None), "claims no error bound"),
    "an error that is no probability": (lambda files: files["certificate.json"].update(max_error=2.0), "not between 0 and 1"),
    "a bound above the error": (lambda files: files["certificate.json"].update(error_bound=0.1), "not within its max_error"),
    "an axis that is nowhere": (
        lambda files: files["certificate.json"].update(axes=[{"size": 4, "inputs": [0], "outputs": [0]}]),
        "does not say where it stands",
    ),
    "no floats": (lambda files: files["certificate.json"].pop("floats"), "does not say that the kernels agree with float64"),
    "unstable kernels": (lambda files: files["certificate.json"]["floats"].update(stable=False), "does not say"),
    "another tolerance": (lambda files: files["certificate.json"]["floats"].update(tolerances=[1.0]), "types or tolerances"),
    "outputs of another type": (lambda files: files["certificate.json"]["floats"].update(dtypes=["bf16"]), "types or tolerances"),
    "a pattern that was not tried": (
        lambda files: files["certificate.json"]["floats"]["inputs"].pop(),
        "there is no measurement for alternating signs",
    ),
    "a scale under another name": (
        lambda files: files["certificate.json"]["floats"]["inputs"][0].update(scale=1.0),
        r"there is no measurement for input scale 0\.001",
    ),
    "an error that is too large": (
        lambda files: files["certificate.json"]["floats"]["inputs"][4].update(errors=[0.5]),
        "the errors at input scale 1000 are not those of stable kernels",
    ),
    "an error that was not measured": (
        lambda files: files["certificate.json"]["floats"]["inputs"][4].update(errors=[None]),
        "the errors at input scale 1000 are not those of stable kernels",
    ),
    "an error below zero": (
        lambda files: files["certificate.json"]["floats"]["inputs"][2].update(errors=[-1e-9]),
        "the errors at input scale 1 are not those of 1 outputs",
    ),
    "an error that is no number": (
        lambda files: files["certificate.json"]["floats"]["inputs"][2].update(errors=["tiny"]),
        "malformed",
    ),
    "a sample of more elements than there are": (
        lambda files: files["certificate.json"]["floats"]["inputs"][2].update(compared=[10**9]),
        "the elements compared at input scale 1 are no parts of the outputs",
    ),
    "a sample of nothing": (
        lambda files: files["certificate.json"]["floats"]["inputs"][2].update(compared=[0]),
        "the elements compared at input scale 1 are no parts of the outputs",
    ),
    "a sample that is no list": (
        lambda files: files["certificate.json"]["floats"]["inputs"][2].update(compared=7),
        "malformed",
    ),
    "a smaller error in the summary": (
        lambda files: files["certificate.json"]["floats"].update(max_relative_error=1e-12),
        "max_relative_error does not follow",
    ),
    "a smaller ratio in the summary": (
        lambda files: files["certificate.json"]["floats"].update(error_ratio=0.001),
        "error_ratio does not follow",
    ),
    "a claim of another bound": (
        lambda files: files["certificate.json"].update(claim="a pair that is not passes with probability at most 1e-30"),
        "claim or reason is not what",
    ),
    "a test in fields that are none": (
        lambda files: files["certificate.json"]["rounds"][0].update(p=2**50),
        "p, q and omega of draw 0 are not those of a test",
    ),
    "a base of another order": (
        lambda files: files["certificate.json"]["rounds"][0].update(omega=2),
        "p, q and omega of draw 0 are not those of a test",
    ),
    "a test twice": (
        lambda files: files["certificate.json"]["rounds"].append(files["certificate.json"]["rounds"][0]),
        "rounds are not distinct tests in order",
    ),
    "no tests": (lambda files: files["certificate.json"].update(rounds=[]), "rounds are not distinct tests in order"),
    "an entry of its own": (
        lambda files: files["certificate.json"].update(approved=True),
        "approved is no entry of a certificate",
    ),
    "no semantics": (lambda files: files["certificate.json"].pop("semantics"), "semantics is missing"),
    "a certificate of another format": (lambda files: files["certificate.json"].update(format=2), "format 2 is not 6"),
    "a certificate of a newer format": (
        lambda files: files["certificate.json"].update(format=7, approved=True),
        "format 7 is newer than 6",
    ),
    "attributes that are no object": (
        lambda files: files["graph.json"]["graph"]["nodes"][0].update(attributes=[]),
        "malformed|not of the form",
    ),
    "operands that are no integers": (
        lambda files: files["program.json"]["graph"]["nodes"][-1]["inputs"].__setitem__(0, [True, False]),
        r"program\.json: an operand or output \[True, False\] is not of the form",
    ),
    "not accepted": (lambda files: files["certificate.json"].update(accepted=False), "found equivalent"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_rejected(tmp_path: Path, name: str) -> None:
    change, complaint = FORGERIES[name]
    folder = write(tmp_path / "result", rmsnorm(), fused_rmsnorm(), change)
    with pytest.raises(Rejected, match=complaint):
        check_folder(folder, seed=0)


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values inside a JSON document."""
    keys: Iterable[Any] = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield (*at, key)
        yield from places(document[key], (*at, key))


def inside(document: Any, place: tuple[Any, ...]) -> Any:
    return functools.reduce(lambda part, key: part[key], place, document)


def scrambled(rng: random.Random, name: str) -> Callable[[dict[str, Document]], None]:
    """One value of a file replaced by another of the same file."""

    def change(files: dict[str, Document]) -> None:
        *path, last = rng.choice(list(places(files[name])))
        inside(files[name], tuple(path))[last] = copy.deepcopy(inside(files[name], rng.choice(list(places(files[name])))))

    return change


@pytest.mark.parametrize("name", ["program.json", "graph.json", "certificate.json"])
def test_scrambled_files_are_rejected_or_still_true(tmp_path: Path, name: str) -> None:
    """Nothing but Rejected is raised; what passes is a pair of equal graphs, or cannot be read by those who would run it."""
    rng, passed = random.Random(0), 0
    for number in range(25):
        folder = write(tmp_path / str(number), rmsnorm(), fused_rmsnorm(), scrambled(rng, name))
        try:
            check_folder(folder, seed=0)
        except Rejected:
            continue
        passed += 1
        with contextlib.suppress(MugraphError):
            left, right = (graph_from_json(json.loads((folder / file).read_text())) for file in ("program.json", "graph.json"))
            assert agree(left, right), number
    assert passed < 20


def test_what_is_unstable_is_rejected_whatever_is_recorded(tmp_path: Path) -> None:
    left, right = program(lambda x: x.sum(-1), (4, 64)), program(lambda x: (x + 10000).sum(-1) - 640000, (4, 64))
    stable = in_float32(left, left).to_json()
    folder = write(tmp_path / "result", left, right, lambda files: files["certificate.json"].update(floats=stable))
    with pytest.raises(Rejected, match=r"graph\.json: unstable at input scale"):
        check_folder(folder, seed=0)


def test_a_program_that_runs_as_it_was_written_needs_no_measurement(tmp_path: Path) -> None:
    folder = write(tmp_path / "result", rmsnorm(), rmsnorm(), lambda files: files["certificate.json"].update(floats=None))
    assert accepted(folder).recorded_error is None


def test_the_program_itself_needs_no_test(tmp_path: Path) -> None:
    report = accepted(write(tmp_path / "good", rmsnorm(), rmsnorm()))
    assert report.rounds == 0
    assert report.error_bound == 0.0

    def another_graph(files: dict[str, Document]) -> None:
        files["graph.json"] = dict(graph_to_json(fused_rmsnorm(scale=False)))

    with pytest.raises(Rejected, match="found by evaluation"):
        check_folder(write(tmp_path / "bad", rmsnorm(), rmsnorm(), another_graph))


def test_too_few_tests_are_not_said_to_reach_the_bound(tmp_path: Path) -> None:
    folder = write(tmp_path / "result", attention(), online_attention())
    report = check_folder(folder, rounds=1, seed=0)
    assert report.error_bound is not None
    assert not report.reached


@pytest.mark.parametrize("name", ["fused RMSNorm", "a loop over columns", "functions of parts", "a product in two parts"])
def test_checker_and_verifier_agree_on_mutants(tmp_path: Path, name: str) -> None:
    """Two implementations of what a muGraph means, and of which axes are parallel."""
    left, right = EQUAL[name]() if name in EQUAL else parts.graphs(parts.EQUAL[name])
    verdicts = []
    for number, mutant in enumerate((right, *mutants(right))):
        verdict = verify_graphs(left, mutant)
        if verdict.equivalent and verdict.error_bound is None:
            continue
        forged = {} if verdict.equivalent else {"accepted": True, "error_bound": 0.0}
        folder = write(tmp_path / str(number), left, mutant, replacing(forged), in_float32(left, left))
        try:
            reached = check_folder(folder, seed=0).reached
        except Rejected:
            reached = False
        assert reached == verdict.equivalent, mutant
        verdicts.append(reached)
    assert verdicts[0]
    assert not all(verdicts)


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    (package,) = mugraph.checker.__path__
    allowed = {"__future__", "collections", "dataclasses", "fractions", "hashlib", "itertools", "json", "math", "pathlib", "zlib"}
    allowed |= {
        "base64",
        "contextlib",
        "decimal",
        "enum",
        "numpy",
        "random",
        "re",
        "secrets",
        "stat",
        "time",
        "typing",
        "mugraph.checker",
    }
    for file in Path(package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name in allowed or any(name.startswith(f"{package}.") for package in allowed), (file, name)


def printed(folder: Path, graph: Graph) -> Path:
    """The folder with the sources of its graph, and where its tensors lie."""
    parameters = dict(Cpu().parameters)
    manifest = json.loads((folder / "mugraph.json").read_text())
    manifest |= {"version": mugraph.__version__, "printer": parameters}
    for name, text in printed_again(graph, "cpu", parameters).items():
        (folder / name).write_text(text)
        manifest["files"][name] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "mugraph.json").write_text(json.dumps(manifest))
    return folder


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = printed(write(tmp_path / "good", rmsnorm(), fused_rmsnorm()), fused_rmsnorm())
    bad = write(tmp_path / "bad", rmsnorm(), fused_rmsnorm(), swap_operator)
    assert main(["verify", "--certificate", str(good)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("accepted: ")
    assert re.search(r": \d+ tests? agreed; a wrong graph would pass with probability at most 2\^-\d+; ", captured.out)
    assert "1 tests" not in captured.out
    for part in PARTS:
        assert re.search(rf"^  {part} +checked: ", captured.out, re.MULTILINE), part
    assert "function  not checked: nothing in a folder says whose function" in captured.out
    assert "test 1 of" in captured.err
    assert main(["verify", "--certificate", str(bad), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["accepted"], record["outcome"]) == (False, "rejected")
    assert "found by evaluation" in record["reason"]
    assert record["parts"]["program"]["status"] == "checked"
    assert record["parts"]["graph"]["status"] == "refused"
    assert record["parts"]["floats"]["status"] == record["parts"]["sources"]["status"] == "not checked"
    assert main(["verify", "--certificate", str(tmp_path / "none")]) == 2
    assert main(["verify", "--rounds", "3"]) == 2
    assert main(["verify", "f.py:f", "g.py:g", "--certificate", str(good)]) == 2


def test_what_is_not_decided_is_not_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sources that cannot be compared, a bound that is not reached, and a certificate without one."""
    other = write(tmp_path / "other", rmsnorm(), fused_rmsnorm())
    assert main(["verify", "--certificate", str(other), "--json"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert (record["accepted"], record["outcome"]) == (False, "undecided")
    assert "printed by mugraph 0.0.1" in record["parts"]["sources"]["reason"]
    few = printed(write(tmp_path / "few", attention(), online_attention()), online_attention())
    assert main(["verify", "--certificate", str(few), "--rounds", "1", "--json"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert record["parts"]["graph"]["status"] == "not checked"
    assert record["parts"]["sources"]["status"] == "checked"
    assert main(["verify", "--certificate", str(few), "--rounds", "1"]) == 3
    assert capsys.readouterr().out.startswith("undecided: ")
    unbounded = write(tmp_path / "unbounded", rmsnorm(), fused_rmsnorm(), replacing({"error_bound": None}))
    assert main(["verify", "--certificate", str(unbounded)]) == 3
    assert "claims no error bound" in capsys.readouterr().out


def test_changed_sources_are_refused_whatever_their_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = printed(write(tmp_path / "result", rmsnorm(), fused_rmsnorm()), fused_rmsnorm())
    text = (folder / "sources" / "kernels.c").read_bytes() + b"\n"
    (folder / "sources" / "kernels.c").write_bytes(text)
    manifest = json.loads((folder / "mugraph.json").read_text())
    manifest["files"]["sources/kernels.c"] = hashlib.sha256(text).hexdigest()
    (folder / "mugraph.json").write_text(json.dumps(manifest))
    assert main(["verify", "--certificate", str(folder), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["parts"]["sources"]["status"] == "refused"
    assert "is not what mugraph" in record["reason"]


@pytest.mark.parametrize(("number", "age"), [(2, "an older"), (5, "a newer")])
def test_another_format_is_bad_input(tmp_path: Path, number: int, age: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "result", rmsnorm(), fused_rmsnorm())
    manifest = json.loads((folder / "mugraph.json").read_text())
    (folder / "mugraph.json").write_text(json.dumps({**manifest, "format": number}))
    assert main(["verify", "--certificate", str(folder)]) == 2
    assert f"was written by {age} mugraph (0.0.1, format {number}, here 4)" in capsys.readouterr().err


def test_all_places_at_which_a_pattern_is_compared_are_in_the_bound() -> None:
    """A row of one element, as in a loop of one iteration, is that element, and no place at which anything could coincide."""
    sizes, domain = Sizes(), residue_fields.Fields(residue_fields.draw(random.Random(0), 8, False), b"key")
    largest = sizes.row_function("max", sizes.row_function("max", sizes.variables((4, 6)), 1), 1)
    x = domain.random((4, 6), random.Random(1))
    once = domain.row_function("max", x, 1)
    assert domain.row_function("max", once, 1) is once
    assert domain.shape(once) == sizes.shape(largest)
    assert len(domain.met["max"]) == 4 * 6 + 4 <= sizes.functions["max"].total + sizes.functions["max"].times


def test_what_the_verifier_adds_up_is_tested_at_full_size(tmp_path: Path) -> None:
    """The columns are parallel to both; that sums of rows may be cut is not proved again, nor relied on."""
    left, right = program(lambda x: (x * 2).exp().sum(0), (4, 6)), program(lambda x: (x + x).exp().sum(0), (4, 6))
    folder = write(tmp_path / "saved", left, right)
    recorded = json.loads((folder / "certificate.json").read_text())["axes"]
    assert sorted((axis["inputs"], axis["sums"]) for axis in recorded) == [([0], [0]), ([1], [])]
    assert accepted(folder).axes == 1
