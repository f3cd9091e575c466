"""CUDA C++ to machine code in this process: NVRTC through NVIDIA's `cuda-core`, without a toolkit, driver or GPU."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from mugraph.errors import CompilationFailed, InvalidInput, TargetUnavailable
from mugraph.support.store import Store
from mugraph.targets.cuda.device import ptx_functions

SOURCE_NAME = "kernels.cu"

_VARIANTS = {"sm_90": ("wgmma", "sm_90a"), "sm_100": ("tcgen05", "sm_100f"), "sm_103": ("tcgen05", "sm_103f")}
"""By architecture the word for its matrix units' own instructions, and the variant that has them and runs on the most GPUs."""
KIND = "cubin"
_SPARING = "SPARING"
"""Where it is 1, loops hold fewer values in registers (`device/interface.h`)."""
_KERNEL = re.compile(r'^[ \t]*extern "C" __global__ [^;{]*?(\w+)\([^(){};]*\)\s*\{', re.MULTILINE)
"""Where the definition of a kernel begins, and its name."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as the assembler reports it: registers a thread, bytes of static shared memory a block,
    bytes of registers spilled to memory (stores and loads in the code), bytes of stack a thread."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of all kernels of one source for one architecture, with the assembler's log.

    `resources` says what each kernel takes, by its name; dynamic shared memory is chosen at launch and not in it.
    """

    code: bytes
    architecture: str
    log: str

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What each kernel takes, by name."""
        return resources_of(self.log)


def compile_cubin(source: str, architecture: str, store: Store | None = None) -> Cubin:
    """Compile kernels that call the device functions and include nothing; `architecture` is `sm_80`, `sm_90`, ...

    The code is for the architecture itself, which runs on later ones of its generation, too, or for a variant where the source
    asks for what only that has. Results are kept in `store` (the user's by default) by source, architecture and compiler version.
    Raises TargetUnavailable without cuda-core, InvalidInput for an architecture the compiler does not know, CompilationFailed
    when it rejects the source, for example for instructions the architecture lacks.
    """
    nvrtc = _nvrtc()
    architecture = variant_for(source, architecture)
    _require_architecture(architecture, nvrtc)
    text = f'{ptx_functions()}\n#line 1 "{SOURCE_NAME}"\n{source}'
    store = Store.of(None) if store is None else store
    key = hashlib.sha256("\0".join((text, architecture, compiler_version())).encode()).hexdigest()
    match store.get(KIND, key):
        case {"code": str(code), "log": str(log)}:
            return Cubin(base64.b64decode(code), architecture, log)
    compiled = _with_fewest_spills(text, architecture)
    about = f"{', '.join(sorted(compiled.resources))} for {architecture}"
    store.put(KIND, key, {"about": about, "code": base64.b64encode(compiled.code).decode(), "log": compiled.log})
    return compiled


def variant_for(source: str, architecture: str) -> str:
    """The architecture, or where kernels have instructions that it lacks the variant of it that has them."""
    word, variant = _VARIANTS.get(architecture, ("", architecture))
    return variant if word and word in source else architecture


@cache
def compiler_version() -> str:
    """The version of NVRTC, as in `13.0`; raises TargetUnavailable without cuda-core."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def _nvrtc() -> ModuleType:
    try:
        import cuda.core  # noqa: F401  (fails early where only the bindings are installed)
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except ImportError as error:
        raise TargetUnavailable(
            f"target cuda compiles with cuda-core, which does not import ({error}); run `pip install 'mugraph[cuda]'`"
        ) from None
    except (RuntimeError, OSError) as error:  # the bindings look for the library when it is first called
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TargetUnavailable(
            f"target cuda compiles with NVRTC, whose library does not load ({why}); run `pip install 'mugraph[cuda]'`"
        ) from None
    module: ModuleType = nvrtc
    return module


def _require_architecture(architecture: str, nvrtc: ModuleType) -> None:
    _, numbers = nvrtc.nvrtcGetSupportedArchs()
    match = re.fullmatch(r"sm_(\d+)[af]?", architecture)
    if match is None or int(match[1]) not in numbers or int(match[1]) < 80:
        architectures = ", ".join(f"sm_{number}" for number in numbers if number >= 80)
        raise InvalidInput(f"NVRTC {compiler_version()} cannot compile for {architecture!r}; use one of {architectures}")


def _with_fewest_spills(text: str, architecture: str) -> Cubin:
    """The machine code of kernels; of those that spill registers with loops unrolled less, where they spill fewer bytes then."""
    usual = _compile(text, architecture)
    spilling = _spilled(usual)
    if not spilling:
        return usual
    sparing = _compile(_sparing(text, spilling), architecture)
    spilled = _spilled(sparing)
    better = {name for name, size in spilling.items() if spilled.get(name, 0) < size}
    if better == spilling.keys():
        return sparing
    return _compile(_sparing(text, better), architecture) if better else usual


def _spilled(cubin: Cubin) -> dict[str, int]:
    """Bytes of registers that each kernel spills which spills some, by name."""
    return {name: resources.spill_bytes for name, resources in cubin.resources.items() if resources.spill_bytes}


def _sparing(text: str, names: Collection[str]) -> str:
    """The text with loops of these kernels unrolled less, and all others as they were."""

    def chosen(kernel: re.Match[str]) -> str:
        return f"#undef {_SPARING}\n#define {_SPARING} {int(kernel[1] in names)}\n{kernel[0]}"

    return _KERNEL.sub(chosen, text)


def _compile(text: str, architecture: str) -> Cubin:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=SOURCE_NAME,
        arch=architecture,
        std="c++17",
        ptxas_options=["-v"],
        diag_suppress=[177],
        no_cache=True,  # of what the driver's cache answers there is no log
    )
    log = io.StringIO()
    try:
        compiled = Program(text, "c++", options).compile("cubin", logs=log)
    except Exception as error:
        # The bindings' error types live in private modules; every one carries the compiler's log as its text.
        reason = next(
            (line.strip() for line in str(error).splitlines() if "error" in line and "NVRTC_ERROR" not in line), str(error)
        )
        raise CompilationFailed(f"NVRTC {compiler_version()} rejected generated kernels for {architecture}: {reason}") from error
    return Cubin(bytes(compiled.code), architecture, log.getvalue())


def resources_of(log: str) -> dict[str, Resources]:
    """What each kernel takes, by name, from the log of NVIDIA's assembler (ptxas -v)."""
    resources: dict[str, Resources] = {}
    for name, body in re.findall(r"Compiling entry function '([^']+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL):
        number = {
            what: sum(map(int, re.findall(rf"(\d+) {what}", body)))
            for what in ("bytes stack frame", "bytes spill stores", "bytes spill loads", "bytes smem")
        }
        (registers,) = re.findall(r"Used (\d+) registers", body)
        resources[name] = Resources(
            registers=int(registers),
            shared_bytes=number["bytes smem"],
            spill_bytes=number["bytes spill stores"] + number["bytes spill loads"],
            stack_bytes=number["bytes stack frame"],
        )
    return resources
