"""The command line's contract: options, JSON on stdout, exit codes, one-line errors on stderr."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import mugraph
from mugraph import api
from mugraph.cli import doctor, main
from mugraph.cli.arguments import processes_of
from mugraph.cli.cache import KINDS
from mugraph.cli.output import dropped
from mugraph.devices import host, measured_host
from mugraph.devices.host import available_cores
from mugraph.lower.pipeline import PIPELINE
from mugraph.lower.tile_text import parse_kernel
from mugraph.pieces import kept_joins, kept_plans, library_ways, piece_optimizer, whole_calls
from mugraph.results.data import Rejection
from mugraph.runtime import baselines
from mugraph.search import structure_cache
from mugraph.selection import result_cache
from mugraph.support.store import Store
from mugraph.targets.cuda import nvrtc
from mugraph.targets.cuda.nvrtc import compiler_version

PROGRAM = """
import torch

def example_inputs():
    return torch.ones(4, 32), torch.ones(32, 64)

def norm_linear(x, w):
    return (x / torch.sqrt((x * x).sum(-1, keepdim=True))) @ w

def linear_norm(x, w):
    return (x @ w) / torch.sqrt((x * x).sum(-1, keepdim=True))

def linear(x, w):
    return x @ w

def cumulative(x, w):
    return torch.logcumsumexp(x, 0) @ w

def mismatched(x, w):
    return x @ w.T

def branching(x, w):
    return x @ w if x.sum() > 0 else x @ w * 2
"""
CONTRACT = {
    "workload", "found", "kernels", "block_operators", "search_seconds", "first_found_seconds", "states", "exhausted",
    "verified", "error_bound", "speedup", "baselines", "max_relative_error", "latency", "target", "dtype", "shapes", "versions",
}  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def optimized(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["optimize", f"{program}:norm_linear", "--no-profile", "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    return tmp_path / "out"


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line a failed command printed, without what progress said before it."""
    captured = capsys.readouterr()
    assert captured.out == ""
    errors = [line for line in captured.err.splitlines() if line.startswith("mugraph: error: ")]
    assert len(errors) == 1
    assert "Traceback" not in captured.err
    return errors[0]


def test_optimize_prints_graph_verdict_and_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "rmsnorm", "--size", "small", "--no-profile"]) == 0
    out = capsys.readouterr().out
    assert "matmul" in out
    assert "equivalent to the program in exact arithmetic, at full size" in out


def documented_keys() -> set[str]:
    page = (Path(__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("## JSON")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_optimize_json_has_the_contract_keys_and_nothing_else_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "rmsnorm", "--size", "small", "--batch", "4", "--no-profile", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) >= CONTRACT
    assert set(record) == documented_keys()
    assert record["workload"] == "rmsnorm"
    assert record["found"] is True
    assert record["verified"] is True
    assert record["kernels"] == len(record["block_operators"]) == 1
    assert record["speedup"] is None
    assert record["baselines"] == {}
    assert record["max_relative_error"] < 1e-5


def test_as_many_are_compiled_and_proved_as_are_asked_for(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, proved in (([], 1), (["--candidates", "2"], 2), (["--candidates", "2", "--compiled", "1"], 1)):
        assert main(["optimize", f"{program}:norm_linear", "--no-profile", "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["candidates"] == proved


def test_numbers_of_what_is_searched_do_not_go_with_a_graph(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.mugraph").write_text("")
    for option in ("--candidates", "--compiled"):
        words = ["optimize", f"{program}:norm_linear", "--graph", str(tmp_path / "own.mugraph")]
        assert main([*words, option, "2"]) == 2
        assert f"leave out {option}" in error_line(capsys)
        assert main(["optimize", f"{program}:norm_linear", option, "0"]) == 2
        assert f"'{option}'" in error_line(capsys)


def test_a_graph_that_breaks_the_grammar_is_named_with_its_file(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.mugraph"
    for text, words in (("", "line 1"), ("kernel_graph {\n  x: fp32[4] = ?\n}", "line 2")):
        file.write_text(text)
        assert main(["optimize", f"{program}:norm_linear", "--graph", str(file)]) == 2
        line = error_line(capsys)
        assert f"{file}: {words}" in line


@pytest.mark.slow
def test_optimize_times_torch_eager_and_compile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "rmsnorm", "--size", "small", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {"torch eager", "torch.compile", "torch.compile max-autotune"} == set(record["baselines"]) | set(record["unavailable"])
    assert record["speedup"] == record["ratios"][min(record["baselines"], key=record["baselines"].get)]


def test_saved_results_can_be_shown(optimized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(optimized)]) == 0
    text = capsys.readouterr().out
    assert "matmul" in text
    assert re.search(r"input_iterator\(.*// device memory, strides \(", text)
    assert main(["show", str(optimized), "--sources"]) == 0
    assert len(capsys.readouterr().out) > len(text)
    assert main(["show", str(optimized), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["verified"] is True
    assert shown["placement"] == json.loads((optimized / "placement.json").read_text())


def test_saved_results_can_be_timed_elsewhere(
    optimized: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    assert main(["bench", str(optimized), "--trust-origin", "--rounds", "3", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert record["folder"] == str(optimized)
    assert set(record["baselines"]) - {baselines.ONE_THREAD} == {baselines.EAGER}  # on one thread, too, where it has several
    assert record["speedup"] > 0
    assert main(["bench", str(optimized), "--trust-origin", "--rounds", "3"]) == 0
    assert "torch eager" in capsys.readouterr().out


def test_results_without_a_function_cannot_be_timed_against_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = mugraph.Program()
    program.output(program.input("x", (4, 4)).exp())
    mugraph.superoptimize(program, profile=False).save(tmp_path / "out")
    assert main(["bench", str(tmp_path / "out")]) == 2
    assert "out" in error_line(capsys)


def test_what_user_code_prints_is_not_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chatty.py"
    path.write_text(
        "import torch\nprint('loading')\n\ndef f(x):\n    print('called')\n    return x.exp()\n\n"
        "def example_inputs():\n    print('inputs')\n    return (torch.ones(2, 3),)\n"
    )
    assert main(["optimize", f"{path}:f", "--json", "--no-profile"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["verified"] is True
    assert main(["verify", f"{path}:f", f"{path}:f", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equivalent"] is True
    assert main(["optimize", f"{path}:f", "--no-profile", "-o", str(tmp_path / "out")]) in (0, 1)
    capsys.readouterr()
    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    assert main(["bench", str(tmp_path / "out"), "--rounds", "1", "--json"]) == 2
    refusal = capsys.readouterr()
    assert "which bench would execute; allow that with --trust-origin" in refusal.err
    assert "loading" not in refusal.err
    assert main(["bench", str(tmp_path / "out"), "--trust-origin", "--rounds", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 1


def test_verify_exit_codes(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{program}:norm_linear", f"{program}:linear_norm"]) == 0
    assert capsys.readouterr().out.startswith("equivalent")
    assert main(["verify", f"{program}:norm_linear", f"{program}:linear"]) == 1
    assert capsys.readouterr().out.startswith("different")
    assert main(["verify", f"{program}:norm_linear", f"{program}:linear", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["outcome"], record["equivalent"]) == ("different", False)
    assert record["counterexample"]["text"]


def test_verify_takes_properties_of_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import torch\n"
        "def early(x): return torch.relu(torch.tanh(x))\n"
        "def late(x): return torch.tanh(torch.relu(x))\n"
        "def example_inputs(): return (torch.randn(4, 8),)\n"
    )
    pair = [f"{path}:early", f"{path}:late"]
    assert main(["verify", *pair]) == 3
    assert main(["verify", *pair, "--property", "relu(tanh(x)) == tanh(abs(x))"]) == 2
    assert "does not hold" in capsys.readouterr().err
    assert main(["verify", pair[0], pair[0], "--property", "gelu(x) = x"]) == 2
    assert "is no equation" in error_line(capsys)
    assert main(["verify", *pair, "--property", "relu(tanh(x)) == tanh(relu(x))"]) == 0
    assert "relu(tanh(x)) == tanh(relu(x))" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["optimize", "rmsnrom"], "rmsnrom"),
        (["optimize", "rmsnorm", "--size", "huge"], "huge"),
        (["optimize", "rmsnorm", "--dtype", "int8"], "int8"),
        (["optimize", "rmsnorm", "--size", "small", "--target", "tpu"], "tpu"),
        (["optimize", "rmsnorm", "--colour", "red"], "--colour"),
        (["optimize", "rmsnorm", "--batch", "0"], "batch"),
        (["optimize", "rmsnorm", "--batch", "many"], "batch"),
        (["optimize"], "WORKLOAD"),
        (["optimise"], "optimise"),
        (["optimize", "missing.py:f"], "missing.py"),
        (["show", "nowhere"], "nowhere"),
        (["bench", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert named in error_line(capsys)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("absent", "absent"),
        ("mismatched", "64"),
        ("branching", "values of a tensor"),
    ],
)
def test_functions_at_fault_are_one_line_and_exit_code_2(
    function: str, named: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", f"{program}:{function}"]) == 2
    assert named in error_line(capsys)


def test_workload_options_do_not_apply_to_files(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", f"{program}:linear", "--batch", "4"]) == 2
    assert "--batch" in error_line(capsys)
    assert main(["optimize", f"{program}:linear", "--dtype", "bf16"]) == 2
    assert "sets its sizes and types in example_inputs()" in error_line(capsys)


def test_output_folder_is_checked_before_the_search(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", f"{program}:norm_linear", "-o", str(program)]) == 2
    assert "program.py" in error_line(capsys)


def test_full_disk_is_one_line_and_leaves_nothing(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: Any, **kwargs: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert main(["optimize", f"{program}:norm_linear", "--no-profile", "-o", str(tmp_path / "out")]) == 2
    assert "No space left on device" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_unwritable_cache_does_not_stop_a_run(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert main(["optimize", f"{program}:norm_linear", "--no-profile"]) == 0
    capsys.readouterr()
    assert main(["doctor"]) == 0
    assert "MUGRAPH_CACHE_DIR" in next(line for line in capsys.readouterr().out.splitlines() if "cache" in line)


def test_traceback_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="nowhere"):
        main(["show", "nowhere", "--traceback"])


def test_defects_are_reported_as_such(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(path: Path, trust_sources: bool) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(api, "load", broken)
    assert main(["show", "anything"]) == 2
    assert "ZeroDivisionError" in error_line(capsys)


def test_doctor_has_a_line_per_subject(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok  ", "warn", "none")) for line in lines)
    assert {"python", "numpy", "torch", "compiler", "cpu", "cache", "gpu"} <= {line.split()[1] for line in lines}
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["python"]["ok"] is True


MEASURED = {
    "about": "measured 2026-01-02, 2 threads",
    "memory": {"bandwidth_per_core": 21e9, "bandwidth_most": 21e9},
    "matmul_flops_per_core": {"fp32": 123e9, "bf16": 456e9},
    "products": {},
}


@pytest.mark.parametrize(
    ("slowdown", "cache", "said"),
    [
        (1.0, "on", "kept; MUGRAPH_HOST_RATES=table"),
        (2.0, "on", "not kept, since"),
        (1.0, "off", "not kept; unset MUGRAPH_CACHE"),
    ],
)
def test_doctor_measures_this_host_when_asked_and_keeps_what_a_quiet_one_reaches(
    slowdown: float, cache: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE", cache)
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("mugraph.runtime.host_rates.measured_host", lambda: MEASURED)
    monkeypatch.setattr("mugraph.devices.host.slowdown", lambda: slowdown)
    host._host_of.cache_clear()
    try:
        assert main(["doctor", "--measure"]) == 0
        lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
        assert said in lines["measured"]
        kept = lines["measured"].startswith("ok")
        assert kept == ("21 GB/s" in lines["cpu"] and "measured 2026-01-02" in lines["cpu"])
        assert kept != ("assumed" in lines["cpu"] and "mugraph doctor --measure times it" in lines["cpu"])
        assert main(["cache", "rm", "host"]) == 0
        assert f"removed {int(kept)} entries" in capsys.readouterr().out
    finally:
        host._host_of.cache_clear()


@pytest.mark.parametrize("subject", doctor.CHECKS)
def test_doctor_survives_whatever_is_broken(
    subject: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> doctor.Finding:
        raise OSError("libfoo.so.1: cannot open\nshared object file")

    monkeypatch.setitem(doctor.CHECKS, subject, broken)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(doctor.CHECKS)
    (line,) = [line for line in lines if "libfoo.so.1: cannot open shared object file" in line]
    assert line.split()[:2] == ["warn", subject]
    assert "install it again" in line


def test_a_library_of_nvrtc_that_is_missing_is_a_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the extra cuda is not installed")

    def missing() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so"')

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    compiler_version.cache_clear()  # it is asked once in a process, and another test may have asked
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "cuda"]
    assert line.startswith("none")
    assert "libnvrtc.so" in line
    assert "pip install 'mugraph[cuda]'" in line
    assert main(["optimize", "rmsnorm", "--size", "small", "--target", "cuda:sm_90"]) == 2
    assert "whose library does not load" in capsys.readouterr().err


def test_doctor_names_the_remedy_for_a_missing_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "compiler" in line.split()[:2])
    assert "install" in line or line.startswith("ok")


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator is for Linux")
@pytest.mark.parametrize(("compilers", "said"), [(("g++",), "and the emulator"), (("clang++",), "not the emulator"), ((), "g++")])
def test_doctor_says_whether_cuda_kernels_can_be_emulated(
    compilers: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in compilers:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "c++"]
    assert line.startswith("ok" if compilers else "warn")
    assert said in line
    assert "emulator of CUDA" in line


def test_cache_is_listed_and_removed(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["optimize", f"{program}:norm_linear", "--no-profile"]) == 0
    capsys.readouterr()
    Store().put("result", "key", {"n": 1})
    assert {entry["kind"] for entry in listed(capsys)} == {"result", "kernel"}
    assert [entry["key"] for entry in listed(capsys, "result")] == ["key"]
    assert listed(capsys, "result")[0]["about"] == ""
    assert main(["cache", "rm", "result"]) == 0
    assert {entry["kind"] for entry in listed(capsys)} == {"kernel"}
    assert main(["cache", "rm"]) == 0
    assert listed(capsys) == []


@pytest.mark.parametrize(("kind", "left"), [("duel", {"calls"}), ("library", {"duel", "calls"}), ("calls", {"duel", "plan"})])
def test_how_graphs_are_cut_is_forgotten_with_what_it_rests_on(
    kind: str, left: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    for kept in ("duel", "calls", "plan"):
        Store().put(kept, "key", {"n": 1})
    assert main(["cache", "rm", kind]) == 0
    capsys.readouterr()
    assert {entry["kind"] for entry in listed(capsys)} == left


def test_the_list_of_what_is_kept_says_when_and_of_what(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MUGRAPH_CACHE", "on")
    assert main(["optimize", f"{program}:norm_linear", "--no-profile"]) == 0
    capsys.readouterr()
    assert main(["cache", "ls", "result"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    day, _, _, _, kind, _, about = line.split(maxsplit=6)
    assert (day, kind) == (f"{date.today()}", "result")
    assert re.fullmatch(r"norm_linear\(.* fp32\[.*\]\) for cpu: 1 kernel", about)
    assert total.startswith("1 entries")


def test_kinds_that_do_not_exist_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    Store().put("result", "key", {"n": 1})
    for command in ("ls", "rm"):
        assert main(["cache", command, "results"]) == 2
        assert "'results'" in (line := error_line(capsys))
        assert "result, structures, duel, calls, library, joins, plan, cubin, host, kernel" in line
    pieces = {piece_optimizer.KIND, library_ways.KIND, kept_joins.KIND, kept_plans.KIND, whole_calls.KIND}
    assert {result_cache.KIND, structure_cache.KIND, nvrtc.KIND, measured_host.KIND} | pieces == set(KINDS) - {"kernel"}
    assert len(listed(capsys, "result")) == 1
    assert listed(capsys, "duel") == []


def test_candidates_dropped_for_like_reasons_are_one_line() -> None:
    like = [Rejection("float", f"an error of {error} where 1e-05 is allowed", 1e-3) for error in ("3.2e-04", "0.1", "inf")]
    lines = dropped(
        [like[0], Rejection("compile", "it needs 3 registers", None), *like[1:], Rejection("verify", like[0].reason, 1.0)]
    )
    assert lines == [
        "dropped 2 candidates (float): an error of 3.2e-04 where 1e-05 is allowed, and the like",
        "dropped a candidate (compile): it needs 3 registers",
        "dropped a candidate (float): an error of inf where 1e-05 is allowed",
        "dropped a candidate (verify): an error of 3.2e-04 where 1e-05 is allowed",
    ]


def test_a_kept_result_says_so(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    for mode, recalled in (("on", False), ("on", True), ("force", False)):
        assert main(["optimize", f"{program}:norm_linear", "--no-profile", "--cache", mode, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["recalled"] is recalled
    assert main(["optimize", f"{program}:norm_linear", "--no-profile", "--cache", "on"]) == 0
    assert "by an earlier run" in capsys.readouterr().out
    assert main(["optimize", f"{program}:norm_linear", "--cache", "often"]) == 2
    assert "--cache often: use one of on, off, read-only, force" in error_line(capsys)


def listed(capsys: pytest.CaptureFixture[str], *kind: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["cache", "ls", *kind, "--json"]) == 0
    entries: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["entries"]
    return entries


def test_a_cache_moves_to_another_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "here"))
    Store().put("result", "key", {"n": 1})
    assert main(["cache", "export", str(tmp_path / "cache.jsonl")]) == 0
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "there"))
    assert main(["cache", "import", str(tmp_path / "cache.jsonl")]) == 0
    assert Store().get("result", "key") == {"n": 1}
    (tmp_path / "cache.jsonl").write_text('{"mugraph-cache": 2}')
    capsys.readouterr()
    assert main(["cache", "import", str(tmp_path / "cache.jsonl")]) == 2
    assert "was exported by a newer mugraph (format 2, here 1)" in error_line(capsys)
    (tmp_path / "cache.jsonl").write_text("changed")
    capsys.readouterr()
    assert main(["cache", "import", str(tmp_path / "cache.jsonl")]) == 2
    assert "is no exported cache" in error_line(capsys)


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['mugraph', '--help']; from mugraph.cli import doctor, main; main(); "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "optimize" in done.stdout


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).parent / "mugraph"
    done = subprocess.run([command, "optimize", "rmsnrom"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mugraph: error: ")


def test_explain_prints_kernels_that_can_be_read_back(optimized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(optimized), "--json"]) == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert stage["pass"] == "lowered"
    (launch,) = mugraph.load(optimized).executable.launches.values()
    assert parse_kernel(stage["text"]) == launch.kernel


def test_kernels_that_are_not_tritons_are_not_exported(
    optimized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(optimized), "-o", str(tmp_path / "tuned.py")]) == 2
    assert "was made for cpu, and only Triton's kernels tune themselves" in capsys.readouterr().err
    assert not (tmp_path / "tuned.py").exists()


def test_explain_shows_what_each_pass_makes(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cuda.core", reason="compiling CUDA needs cuda-core")
    saved = str(tmp_path / "gpu")
    assert main(["optimize", f"{program}:norm_linear", "--no-profile", "--target", "cuda:sm_90", "-o", saved]) == 0
    capsys.readouterr()
    assert main(["explain", saved]) == 0
    text = capsys.readouterr().out
    assert [line.split(" after ")[1].split(":")[0] for line in text.splitlines() if line.startswith("// ")] == [
        "lowered",
        *(step.name for step in PIPELINE),
    ]
    assert main(["explain", saved, "--after", "barriers"]) == 0
    assert "  barrier\n" in capsys.readouterr().out
    assert main(["explain", saved, "--after", "inlining"]) == 2
    assert "no pass 'inlining'" in error_line(capsys)


def test_a_link_to_a_folder_stays_and_what_it_leads_to_is_replaced(program: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    for place in ("there", "not there yet"):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / "elsewhere" / place)
        for _ in range(2):
            assert main(["optimize", f"{program}:norm_linear", "--no-profile", "-o", str(link)]) == 0
        assert link.is_symlink()
        assert main(["show", str(tmp_path / "elsewhere" / place)]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--evidence", "weak"], "--evidence weak: use one of bounded, tested"),
        (["--search", "random"], "--search random: use one of closure, enumerate"),
        (["--cache", "often"], "--cache often: use one of on, off, read-only, force"),
        (["--workers", "0"], "--workers 0: use a number of processes, at least 1, or ray"),
        (["--workers", "many"], "--workers many: use a number"),
        (["--target", "tpu"], "unknown target 'tpu'"),
        (["-o", "/dev/null/result"], "cannot write /dev/null/result: /dev/null is no folder that you may write to"),
    ],
)
def test_wrong_words_are_named_before_anything_is_loaded(words: list[str], said: str) -> None:
    assert_refused_before_anything_is_loaded(["rmsnorm", *words], said)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rmsnorms", "unknown workload 'rmsnorms'; use one of rmsnorm, .*, ntrans, or FILE.py:function, or FILE.onnx"),
        ("missing.py:f", "there is no file missing.py"),
        ("softmax.py", "'softmax.py' does not name a function; write FILE.py:function"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_loaded(word: str, said: str) -> None:
    assert_refused_before_anything_is_loaded([word], said)


def assert_refused_before_anything_is_loaded(words: list[str], said: str) -> None:
    script = f"import sys; from mugraph.cli import main; code = main(['optimize', *{words!r}]); "
    script += "assert 'torch' not in sys.modules and 'mugraph.api' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert re.search(said, done.stderr)


def test_more_workers_than_cores_are_capped_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert processes_of("100000") == available_cores()
    assert "--workers 100000 is more than there are cores" in capsys.readouterr().err
    assert processes_of("1") == 1
    assert processes_of("ray://host:10001") == "ray://host:10001"
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_seen_enough_is_no_failure(program: Path, tmp_path: Path) -> None:
    assert main(["optimize", f"{program}:norm_linear", "--no-profile", "-o", str(tmp_path / "out")]) == 0
    command = f"set -o pipefail; {sys.executable} -m mugraph show --sources {tmp_path / 'out'} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_page_goes_to_stdout(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", f"{program}:norm_linear", "--no-profile", "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "out"), "--html", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")


def test_who_interrupts_before_there_is_anything_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "interrupted.py"
    file.write_text("def f(x):\n    return x\n\n\ndef example_inputs():\n    raise KeyboardInterrupt\n")
    assert main(["optimize", f"{file}:f"]) == 130
    assert capsys.readouterr().err.endswith("mugraph: interrupted\n")
