"""`mugraph doctor`: what this machine has, what it lacks, and the remedy for each lack."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from mugraph.cli.arguments import Json, Traceback
from mugraph.errors import MugraphError, TargetUnavailable


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; a warning carries its remedy, and what is `absent` is only needed by who asks for it."""

    subject: str
    ok: bool
    text: str
    remedy: str = ""
    absent: bool = False

    def __str__(self) -> str:
        status = "none" if self.absent else "ok" if self.ok else "warn"
        line = f"{status:<4}  {self.subject:<16} {self.text}"
        return f"{line}; {self.remedy}" if self.remedy else line


Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Time what this CPU reaches, a few seconds, and keep it: searches begun later predict by it, and not by a table.",
    ),
]


def doctor(measure: Measure = False, json_output: Json = False, traceback: Traceback = False) -> int:
    """Check this machine, and name remedies."""
    findings = [_measured()] if measure else []
    findings += [_guarded(subject, check) for subject, check in CHECKS.items()]
    if json_output:
        print(json.dumps({finding.subject: asdict(finding) for finding in findings}))
    else:
        for finding in findings:
            print(finding)
    return 0


def _guarded(subject: str, check: Callable[[], Finding]) -> Finding:
    """What a check finds; whatever it raises is a finding, too: packages can be there and broken."""
    try:
        return check()
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = "what it needs is there, but broken: install it again; if that does not help, please report this"
        return Finding(subject, False, f"could not be checked ({text})", remedy)


_BUSY = 1.25
"""Rates are kept of machines on which this process waits for less than a quarter of the time that it computes."""


def _measured() -> Finding:
    """Time this host, and keep what it reaches; raises TargetUnavailable where it cannot be timed."""
    from mugraph.devices.host import keep_rates, measured_about, slowdown
    from mugraph.devices.measured_host import KIND
    from mugraph.runtime.host_rates import measured_host

    rates = measured_host()
    if slowdown() > _BUSY:
        text = f"{_rates_text(rates['memory']['bandwidth_per_core'], rates['matmul_flops_per_core'])} a core, {rates['about']}"
        return Finding("measured", False, text, "not kept, since others had the cores; measure again on a quiet machine")
    keep_rates(rates)
    if measured_about() is None:
        return Finding("measured", False, "not kept", "unset MUGRAPH_CACHE and MUGRAPH_HOST_RATES, which say so")
    return Finding("measured", True, f"kept; MUGRAPH_HOST_RATES=table leaves it aside, and mugraph cache rm {KIND} forgets it")


def _rates_text(bandwidth: float, flops: Mapping[Any, float]) -> str:
    """Bytes and operations a second in words."""
    products = ", ".join(f"{dtype} {rate / 1e9:.0f}" for dtype, rate in flops.items() if str(dtype) in ("fp32", "bf16"))
    return f"{bandwidth / 1e9:.0f} GB/s, matmul {products} GFLOP/s"


def _python() -> Finding:
    import mugraph

    return Finding("python", True, f"{platform.python_version()} on {platform.machine()}, mugraph {mugraph.__version__}")


def _package(name: str, remedy: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, "not installed", remedy)


def _torch() -> Finding:
    return _package("torch", "pip install torch, to optimize PyTorch functions (mugraph.Program works without it)")


def _triton() -> Finding:
    from mugraph.targets.triton.compiler import triton_version

    return _gpu_compiler("triton", "Triton", triton_version)


def _cuda() -> Finding:
    from mugraph.targets.cuda.nvrtc import compiler_version
    from mugraph.targets.cuda.versions import TESTED, untested

    finding = _gpu_compiler("cuda", "NVRTC", compiler_version)
    if not (later := untested()):
        return finding
    limits = ", ".join(f"{name} {installed} (tested to {'.'.join(map(str, TESTED[name]))})" for name, installed in later.items())
    remedy = "if kernels do not compile or launch, pip install " + " ".join(
        f"'{name}<{TESTED[name][0]}.{TESTED[name][1] + 1}'" for name in later
    )
    return replace(
        finding,
        ok=finding.absent,
        text=f"{finding.text}; later than what is tested: {limits}",
        remedy=f"{finding.remedy}; {remedy}" if finding.remedy else remedy,
    )


def _gpu_compiler(target: str, name: str, installed: Callable[[], object]) -> Finding:
    """Whether a target's compiler is here; `installed` gives its version, or raises a MugraphError with the remedy."""
    try:
        return Finding(
            target, True, f"{name} {installed()} compiles for {target}:sm_80, {target}:sm_90, ..., with or without a GPU"
        )
    except MugraphError as error:
        return Finding(target, True, f"nothing compiles for {target} targets here", str(error), absent=True)


def _compiler() -> Finding:
    from mugraph.targets.cpu.compiler import find_compiler

    try:
        compiler = find_compiler()
    except MugraphError as error:
        return Finding("compiler", False, str(error))
    vectors = compiler.vectors
    text = f"{' '.join(compiler.command)}, vectors of {vectors.lanes} floats, {vectors.registers} vector registers"
    return Finding("compiler", True, text)


def _cxx() -> Finding:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        remedy = "torch.compile and the emulator of CUDA need it: no times of the one, no kernels run by the other; install g++"
        return Finding("c++", False, "not found", remedy)
    emulates = sys.platform == "linux" and shutil.which("g++") is not None
    also = "and the emulator of CUDA" if emulates else "but not the emulator of CUDA, which takes g++ on Linux"
    return Finding("c++", True, f"{compiler}, for the torch.compile baselines {also}")


def _processor() -> Finding:
    from mugraph.devices import device_for
    from mugraph.devices.host import measured_about

    device, about = device_for("cpu"), measured_about()
    source = "assumed" if about is None else about
    text = f"{device.name}; {source}: {_rates_text(device.memory_bandwidth, device.matmul_flops)}"
    return Finding("cpu", True, text, "mugraph doctor --measure times it" if about is None else "")


def _threads() -> Finding:
    policy = os.environ.get("OMP_WAIT_POLICY", "unset")
    if policy.lower() == "passive":
        text = "passive, as this command line sets it: threads sleep between kernels, which suits a machine with other work"
        text += "; on one's own leave it unset in programs, where calls below a millisecond are up to twice as fast"
        return Finding("OMP_WAIT_POLICY", True, text)
    return Finding("OMP_WAIT_POLICY", False, policy, "set it to passive: spinning threads disturb measured times")


def _cache() -> Finding:
    from mugraph.support.private_directories import NotPrivate, make_private
    from mugraph.support.store import cache_directory

    directory = cache_directory()
    try:
        make_private(directory)
        probe = directory / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        remedy = "kernels are compiled anew in every process; set MUGRAPH_CACHE_DIR to a writable directory"
        return Finding("cache", False, f"{directory} is not writable ({error.strerror})", remedy)
    except NotPrivate as error:
        return Finding("cache", False, f"{directory} is not used: {error}")
    return Finding("cache", True, str(directory))


def _gpu() -> Finding:
    try:
        import torch
    except ModuleNotFoundError:
        return Finding("gpu", False, "unknown without torch", "pip install torch")
    if not torch.cuda.is_available():
        return Finding("gpu", True, "PyTorch sees none; the cpu target is the default", absent=True)
    from mugraph.targets.gpu import present_architecture

    try:
        architecture = present_architecture()
    except TargetUnavailable as error:
        return Finding("gpu", True, str(error).partition(";")[0], absent=True)
    return Finding(
        "gpu", True, f"{torch.cuda.get_device_name()}; ask for it with --target cuda, or elsewhere cuda:{architecture}"
    )


def _numpy() -> Finding:
    return _package("numpy", "pip install numpy")


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "numpy": _numpy,
    "torch": _torch,
    "compiler": _compiler,
    "c++": _cxx,
    "cpu": _processor,
    "OMP_WAIT_POLICY": _threads,
    "cache": _cache,
    "gpu": _gpu,
    "triton": _triton,
    "cuda": _cuda,
}
