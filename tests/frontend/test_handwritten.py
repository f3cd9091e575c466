"""muGraphs that somebody wrote: proved, compiled, called, saved; and refused with the line or the operator at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mugraph
from mugraph import Program, SearchSpace
from mugraph.cli import main
from mugraph.devices import device_for
from mugraph.errors import BudgetExceeded, ExceedsMemory, InvalidGraph, InvalidInput, MugraphError, NotEquivalent, ShapeMismatch
from mugraph.frontend.handwritten import in_place_of
from mugraph.ir.text import parse_graph
from mugraph.lower.thread_graphs import construct
from mugraph.search import search
from mugraph.support.store import Store

TEXT = """
// x w over the length of x, without the normalised x
kernel_graph {
  w: fp32[64, 32] = input
  x: fp32[16, 64] = input
  %out: fp32[16, 32] = block_graph(w, x) grid(x=4) loop(i=2) {
    | %x: fp32[16, 32] = input_iterator(x) {x<->phi, i<->1}
    | %w: fp32[32, 8] = input_iterator(w) {x<->1, i<->0} // by columns and by rows
    | %product: fp32[16, 8] = matmul(%x, %w)
    | %square: fp32[16, 32] = square(%x)
    | %sum: fp32[16, 1] = sum(%square) dim=1 size=32
      %a: fp32[16, 8] = accumulate(%product) combine=sum
      %b: fp32[16, 1] = accumulate(%sum) combine=sum
      %length: fp32[16, 1] = sqrt(%b)
      %divided: fp32[16, 8] = div(%a, %length)
      %saved: fp32[16, 32] = output_saver(%divided) {x<->1}
    return %saved
  }
  return %out
}
"""
FILE = """
import torch

def example_inputs():
    return torch.ones(16, 64), torch.ones(64, 32)

def normalised(x, w):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True)) @ w
"""


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True)) @ w


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 64, generator=generator), torch.randn(64, 32, generator=generator)


@pytest.fixture(scope="module")
def opt() -> mugraph.Superoptimized:
    return mugraph.optimize_graph(TEXT, normalised, tensors())


def test_it_runs_and_is_proved(opt: mugraph.Superoptimized) -> None:
    x, w = tensors()
    torch.testing.assert_close(opt(x=x, w=w), normalised(x, w), rtol=1e-5, atol=1e-5)
    assert opt.certificate.accepted
    assert opt.certificate.error_bound is not None
    assert opt.certificate.error_bound <= 2**-40
    assert opt.best.latency is not None
    assert opt.report.original_latency is not None
    assert opt.report.exhausted_what == "nothing was searched: the muGraph was given"


def test_what_runs_is_the_graph_that_was_given_with_thread_graphs(opt: mugraph.Superoptimized) -> None:
    (kernel,) = opt.graph.kernels()
    assert kernel.body is not None
    assert (kernel.body.grid, kernel.body.loop) == ((4,), 2)
    assert [node.op for node in kernel.body.nodes][-2:] == ["graph_defined", "output_saver"]
    assert opt.graph.input_names == ("x", "w")


def test_it_is_saved_and_loaded_like_any_result(opt: mugraph.Superoptimized, tmp_path: Path) -> None:
    again = mugraph.load(opt.save(tmp_path / "saved"))
    assert again.graph == opt.graph
    torch.testing.assert_close(again(*tensors()), opt(*tensors()), rtol=0, atol=0)
    assert main(["verify", "--certificate", str(tmp_path / "saved")]) == 0


def test_it_is_slower_than_the_original_and_runs_all_the_same() -> None:
    """One block that adds up in 64 steps is far slower than PyTorch's product, and is what was asked for."""
    slow = (
        TEXT.replace("grid(x=4) loop(i=2)", "grid(x=1) loop(i=64)").replace("[16, 32]", "[16, 1]").replace("[32, 8]", "[1, 32]")
    )
    slow = slow.replace("[16, 8]", "[16, 32]").replace("size=32", "size=1").replace("%out: fp32[16, 1]", "%out: fp32[16, 32]")
    slow = slow.replace("%saved: fp32[16, 1]", "%saved: fp32[16, 32]")
    (kernel,) = mugraph.optimize_graph(slow, normalised, tensors()).graph.kernels()
    assert kernel.body is not None
    assert kernel.body.loop == 64


def test_inputs_of_other_names_are_taken_in_order() -> None:
    first, *rest = TEXT.split("  w: fp32[64, 32] = input\n  x: fp32[16, 64] = input\n")
    text = first + "  in1: fp32[16, 64] = input\n  in2: fp32[64, 32] = input\n" + rest[0]
    text = text.replace("block_graph(w, x)", "block_graph(in2, in1)")
    text = text.replace("input_iterator(x)", "input_iterator(in1)").replace("input_iterator(w)", "input_iterator(in2)")
    opt = mugraph.optimize_graph(text, normalised, tensors(), profile=False)
    torch.testing.assert_close(opt(*tensors()), normalised(*tensors()), rtol=1e-5, atol=1e-5)


def test_inputs_that_a_mugraph_does_not_need_may_be_left_out() -> None:
    p = Program()
    x, y = p.input("x", (8, 8)), p.input("y", (8, 8))
    p.output(x + x + (y - y))
    text = "kernel_graph {\n  x: fp32[8, 8] = input\n  %sum: fp32[8, 8] = add(x, x)\n  return %sum\n}"
    opt = mugraph.optimize_graph(text, p, profile=False)
    assert opt.graph.input_names == ("x", "y")
    assert opt.certificate.accepted


def test_graphs_are_taken_as_well_as_texts() -> None:
    opt = mugraph.optimize_graph(parse_graph(TEXT), normalised, tensors(), "cuda:sm_90")
    assert opt.certificate.accepted
    assert opt.best.spot_check is not None
    assert not opt.best.spot_check.fault
    assert opt.best.spot_check.ran


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ("div(%a, %length)", "mul(%a, %length)", NotEquivalent, r"does not compute the program: output 0 differs at \["),
        ("div(%a, %length)", "div(%a, %b)", NotEquivalent, r"does not compute the program: output 0 differs at \["),
        ("sqrt(%b)", "sqrrt(%b)", InvalidGraph, r"`%\d+: fp32\[16, 1\] = sqrrt\(%\d+\)`: operator 'sqrrt' is not in"),
        ("grid(x=4)", "grid(x=5)", InvalidGraph, r"input_iterator\(\[64, 32\]\): dimension 1 .* does not divide into 5"),
        ("[16, 8] = matmul", "[16, 9] = matmul", InvalidGraph, r"= matmul\(.*its operands make fp32\[16, 8\]"),
        ("x: fp32[16, 64]", "x: fp32[16, 65]", InvalidGraph, r"input_iterator"),
        ("w: fp32[64, 32] = input\n", "w: fp32[64, 32] = input\n  z: fp32[4] = input\n", ShapeMismatch, "reads w, z, x, and"),
        ("fp32", "fp64", ShapeMismatch, r"returns fp64\[16, 32\], and the program fp32"),
        ("    | %sum", "      %sum", InvalidInput, r"line 18, column 3: the bars .* %sum is inside and has none"),
        ("      %a:", "    | %a:", InvalidInput, r"line 18, column 3: the bars .* %a has one and is not inside"),
        ("grid(x=4)", "grid(x=)", InvalidInput, "line 6, column 49: expected a number, found '\\)'"),
        ("kernel_graph", "block_graph", InvalidInput, "line"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_named(old: str, new: str, error: type[MugraphError], words: str) -> None:
    assert old in TEXT
    with pytest.raises(error, match=words) as caught:
        mugraph.optimize_graph(TEXT.replace(old, new), normalised, tensors(), profile=False)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_the_device_is_refused() -> None:
    p = Program()
    x = p.input("x", (256, 4096))
    p.output(x.square().sum(-1, keepdim=True) * x)
    text = """kernel_graph {
      x: fp32[256, 4096] = input
      %y: fp32[256, 4096] = block_graph(x) grid(x=2) {
        %x: fp32[128, 4096] = input_iterator(x) {x<->0}
        %q: fp32[128, 4096] = square(%x)
        %s: fp32[128, 1] = sum(%q) dim=1 size=4096
        %m: fp32[128, 4096] = mul(%s, %x)
        %o: fp32[256, 4096] = output_saver(%m) {x<->0}
        return %o
      }
      return %y
    }"""
    with pytest.raises(ExceedsMemory, match="bytes of shared memory, and NVIDIA A100 SXM 40 GB has 166912"):
        mugraph.optimize_graph(text, p, target="cuda:sm_80")


def test_what_leaves_the_range_of_floats_is_not_run() -> None:
    """Exponentials that are not shifted by their row's maximum are right in the fields, and infinite for large inputs."""
    p = Program()
    p.output(p.input("x", (4, 64)).softmax(-1))
    text = """kernel_graph {
      x: fp32[4, 64] = input
      %e: fp32[4, 64] = exp(x)
      %s: fp32[4, 1] = sum(%e) dim=1 size=64
      %y: fp32[4, 64] = div(%e, %s)
      return %y
    }"""
    with pytest.raises(NotEquivalent, match=r"is not shown to compute the program \(float: "):
        mugraph.optimize_graph(text, p, profile=False)


def test_what_is_found_can_be_given_back_as_text() -> None:
    """The text of every candidate, with all its views and several kernels, is the candidate again."""
    p = Program()
    q, k, v = (p.input(name, (2, rows, 16)) for name, rows in (("q", 4), ("k", 512), ("v", 512)))
    p.output((q @ k.transpose(-2, -1)).softmax(-1) @ v)
    device = device_for("cuda:sm_90")
    candidates = search(p.graph, device).candidates
    assert {len(candidate.graph.kernels()) for candidate in candidates} >= {1, 2}
    for candidate in candidates:
        for graph in (candidate.graph, construct(candidate.graph)):
            assert in_place_of(p.graph, str(graph), device) == graph


def test_a_page_shows_it(opt: mugraph.Superoptimized) -> None:
    assert "nothing was searched: the muGraph was given" in opt.to_html()


def test_an_interrupted_proof_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mugraph.selection.qualification.float_check", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mugraph.optimize_graph(TEXT, normalised, tensors(), profile=False)


def test_other_things_are_no_graphs() -> None:
    with pytest.raises(InvalidInput, match="not a int"):
        mugraph.optimize_graph(3, normalised, tensors())  # type: ignore[arg-type]  # that is the point
    (kernel,) = parse_graph(TEXT).kernels()
    assert kernel.body is not None
    with pytest.raises(InvalidInput, match="not a block graph"):
        mugraph.optimize_graph(kernel.body, normalised, tensors())


def test_a_budget_that_is_too_short_is_said() -> None:
    with pytest.raises(BudgetExceeded, match="raise the budget"):
        mugraph.optimize_graph(TEXT, normalised, tensors(), budget=1e-6)


# --- the command line, and spaces through superoptimize ----------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "program.py").write_text(FILE)
    (tmp_path / "written.mugraph").write_text(TEXT)
    return f"{tmp_path / 'program.py'}:normalised", str(tmp_path / "written.mugraph")


def test_the_command_line_takes_a_graph(files: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    function, graph = files
    assert main(["optimize", function, "--graph", graph, "--no-profile", "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "nothing was searched: the muGraph was given" in printed
    assert "equivalent to the program in exact arithmetic" in printed
    assert mugraph.load(tmp_path / "out").certificate.accepted


def test_a_file_that_is_no_text_is_one_line(files: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, words in (("binary", "is not UTF-8 text"), ("missing", "No such file or directory; give the file of a muGraph")):
        assert main(["optimize", files[0], "--graph", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--loops", "2"], ["--search", "enumerate"], ["--workers", "2"], ["--cache", "off"]])
def test_a_graph_is_not_searched_for(files: tuple[str, str], options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    function, graph = files
    assert main(["optimize", function, "--graph", graph, *options]) == 2
    assert "--graph gives the muGraph, and nothing is searched" in capsys.readouterr().err


def test_the_command_line_asks_for_a_space(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = "--kernels 1 --block-operators 11 --grids 4,2x2 --loops 2 --map x{x<->phi,i<->1} --no-profile --json --cache off"
    assert main(["optimize", files[0], *words.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["space"] == "at most 1 kernel; at most 11 block operators; grids 4, 2x2; for-loops 2; x {x<->phi, i<->1}"
    assert found["exhausted_what"].endswith(f"within the space asked for: {found['space']}")
    assert found["kernels"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--grids 4x", "--grids 4x: write whole numbers"),
        ("--loops one", "--loops one: write whole numbers"),
        ("--map x", "--map x: write each input once"),
        ("--map x{x<->0} --map x{x<->1}", "--map x{x<->1}: write each input once"),
        ("--grids 7", "grid 7: no dimension of the program"),
        ("--kernels 0", "kernels is a number of at least 1"),
        (
            "--kernels 1 --block-operators 4 --grids 4 --no-profile --cache off",
            "found in the space asked for: at most 1 kernel; at most 4 block operators; grids 4; "
            "without its limit on kernels there are some; without its limit on block_operators there are some",
        ),
    ],
)
def test_what_asks_for_nothing_is_one_line(
    files: tuple[str, str], options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", files[0], *options.split()]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("mugraph: error:"))
    assert words in line


def test_a_space_beyond_the_device_names_its_memory() -> None:
    p = Program()
    x, w = p.input("x", (512, 4096)), p.input("w", (4096, 4096))
    p.output((x @ w).silu())
    with pytest.raises(InvalidInput, match=r"without its limit on grids .* need more than the 232448 bytes of shared memory"):
        mugraph.superoptimize(p, target="cuda:sm_90", space=SearchSpace(kernels=1, grids=[1]), cache="off")


@pytest.mark.parametrize("engine", ["closure", "enumerate"])
def test_results_of_a_space_are_kept_apart(engine: Any, tmp_path: Path) -> None:
    p = Program()
    x, w = p.input("x", (4, 4)), p.input("w", (4, 8))
    p.output((x @ w).silu())
    store = Store(tmp_path)
    spaces = [SearchSpace(grids=[4], loops=[1]), SearchSpace(grids=[2], loops=[1])]

    def optimized(space: SearchSpace) -> mugraph.Superoptimized:
        return mugraph.superoptimize(p, space=space, search=engine, profile=False, cache=store)

    for space in spaces:
        assert not optimized(space).report.recalled
    for space in spaces:
        again = optimized(space)
        assert again.report.recalled
        assert again.report.space == str(space)
        assert again.found
        assert space.holds(again.graph)


def test_a_space_is_a_space() -> None:
    with pytest.raises(InvalidInput, match=r"space is a mugraph\.SearchSpace, not a dict"):
        mugraph.superoptimize(normalised, tensors(), space={"kernels": 1})  # type: ignore[call-overload]  # that is the point


def test_long_programs_cannot_be_limited_in_what_only_the_whole_has() -> None:
    p = Program()
    x = p.input("x", (16, 64))
    for _ in range(120):
        x = (x * 0.5).silu() + 1.0
    p.output(x)
    with pytest.raises(InvalidInput, match="kernels and maps cannot be limited here: the program is too long"):
        mugraph.superoptimize(p, space=SearchSpace(kernels=2), cache="off")
