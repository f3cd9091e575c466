"""Loading and launching on a driver that records: run by test_stub.py in a process of their own, which has this driver."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import mugraph
from mugraph.devices import device_for, resolved
from mugraph.errors import InvalidInput, LaunchFailed, MugraphError, ShapeMismatch, TargetUnavailable
from mugraph.frontend import trace
from mugraph.frontend.calls.calling import Positional
from mugraph.host.arrays import torch_arrays
from mugraph.integrations.decorator import Optimized
from mugraph.integrations.torch_operator import torch_operator
from mugraph.ir import DType
from mugraph.lower.tensor_maps import TensorMap
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER
from mugraph.selection.target_of_inputs import target_of_inputs
from mugraph.targets.cuda.nvrtc import Cubin
from mugraph.targets.launch import Launcher, LaunchShape, LoadedKernel
from mugraph.targets.machine import machine_for
from targets.cuda.stub import torch_side
from targets.cuda.stub.programs import DIVIDED, GRAPHS, SHAPE, TARGET, built, first_slices
from targets.cuda.stub.torch_side import DRIVER, at_offset, on

FOLDER = Path(os.environ["STUB_KERNELS"])
LARGE = LaunchShape(grid=(4, 2), threads=128, shared_bytes=100_000)


class Launch(ctypes.Structure):
    """A launch as the driver was asked for it."""

    _fields_ = (
        *(("kernel", ctypes.c_char * 64), ("device", ctypes.c_int), ("stream", ctypes.c_uint64)),
        *(("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint)),
        *(("operands", ctypes.c_uint64 * 16), ("maps", ctypes.c_uint64 * 16 * 4), ("early", ctypes.c_int)),
    )


DTYPES = torch_arrays().dtypes  # type: ignore[attr-defined]
DRIVER.stub_launch.restype = ctypes.POINTER(Launch)


def launches() -> list[Any]:
    return [DRIVER.stub_launch(number).contents for number in range(DRIVER.stub_launches())]


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch_side.install()
    DRIVER.stub_forget()
    yield
    torch_side.streams.update({0: 0, 1: 0})
    torch_side.properties.update({0: torch_side.H100, 1: torch_side.H100})
    torch_side.exchange_device(0)


def fail(call: str, error: int, times: int = 1) -> None:
    DRIVER.stub_fail(call.encode(), error, times)


def rows() -> torch.Tensor:
    return torch.randn(SHAPE)


def copy_rows() -> None:
    """From now on, launches copy as much as `rows` has."""
    DRIVER.stub_copies(4 * SHAPE[0] * SHAPE[1])


def held(tensor: Any) -> torch.Tensor:
    inside: torch.Tensor = tensor.held
    return inside


def cubin(text: str) -> Cubin:
    return Cubin(text.encode(), "sm_90a", "")


@pytest.mark.parametrize("current", [0, 1])
def test_a_launch_goes_to_the_device_of_the_tensors_on_its_current_stream(current: int) -> None:
    executable = built("one", FOLDER)
    (kernel,) = executable.kernels
    torch_side.exchange_device(current)
    DRIVER.stub_operands(4)
    expected = []
    for device, stream in [(0, 0), (1, 0x2001), (0, 0x1001), (1, 0), (1, 0x2002)]:
        torch_side.streams[device] = stream
        inputs = [on(device, torch.randn(node.output.shape).half()) for node in executable.graph.inputs()]
        (output,) = executable(*inputs)
        assert output.device == torch.device("cuda", device)
        expected.append((device, stream, [tensor.data_ptr() for tensor in (*inputs, output)]))
        assert (torch_side.current_device(), DRIVER.stub_device()) == (current, current)
    assert [(launch.device, launch.stream, launch.operands[:4]) for launch in launches()] == expected
    for launch in launches():
        assert launch.kernel.decode() == kernel.name
        assert [*launch.grid] == [kernel.grid[0], 1, 1]
        assert ([*launch.block], launch.shared) == ([kernel.threads, 1, 1], kernel.shared_bytes)


def test_the_machine_code_is_read_once_and_loaded_on_each_device_when_it_is_needed() -> None:
    copy_rows()
    executable = built("three", FOLDER)
    assert DRIVER.stub_loads() == 0
    for device in (0, 1, 0, 1):
        x = on(device, rows())
        assert torch.equal(held(executable(x)[0]), held(x))
    assert DRIVER.stub_loads() <= 1
    assert [launch.device for launch in launches()] == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3


def test_kernels_behind_the_first_of_a_call_are_launched_early_where_they_wait_themselves() -> None:
    copy_rows()
    usual, early, x = built("three", FOLDER), built("early", FOLDER), on(0, rows())
    for executable in (usual, early, early):
        assert torch.equal(held(executable(x)[0]), held(x))
    assert [launch.early for launch in launches()] == [0, 0, 0] + [0, 1, 1] * 2, (
        "what was before the call may not wait for others"
    )
    torch_side.streams[0] = 0x1001
    early(x)
    assert [launch.early for launch in launches()[-3:]] == [0, 1, 1]


def test_a_kernel_behind_a_call_of_the_library_is_not_launched_early() -> None:
    mixed = built("early mixed", FOLDER)
    assert all(kernel.chained for kernel in mixed.kernels)
    mixed(on(0, torch.randn(64, 64)), on(0, torch.randn(64, 64)))
    assert [launch.early for launch in launches()] == [0, 0]


def test_tensors_on_two_devices_are_refused_by_name() -> None:
    executable = built("mixed", FOLDER)
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    executable(on(0, x), on(0, w))
    executable(on(1, x), on(1, w))
    before = len(launches())
    with pytest.raises(InvalidInput, match=r"'w' is on cuda:1, and other inputs on cuda:0; .* move it with .to\('cuda:0'\)"):
        executable(on(0, x), on(1, w))
    with pytest.raises(InvalidInput, match=r"input 'x' is on cpu, and other inputs on cuda:1; .* move it with .to\('cuda:1'\)"):
        executable(x, on(1, w))
    with pytest.raises(InvalidInput, match=r"input 'x' is on cpu; this target takes tensors on cuda: move it with .to\('cuda'\)"):
        executable(x, w)
    assert len(launches()) == before


def test_many_streams_are_told_apart_and_not_all_kept() -> None:
    executable = built("one", FOLDER)
    DRIVER.stub_operands(4)
    inputs = [on(0, torch.randn(node.output.shape).half()) for node in executable.graph.inputs()]
    handles = [0x1000 + 16 * number for number in range(100)] * 2
    for handle in handles:
        torch_side.streams[0] = handle
        executable(*inputs)
    assert [launch.stream for launch in launches()] == handles


def test_shared_memory_is_asked_for_on_each_device_before_the_first_launch() -> None:
    kernel = Launcher(cubin("shared"), "with_shared", LARGE)
    kernel.on(1)
    assert [DRIVER.stub_allowed(b"with_shared", device) for device in (0, 1)] == [0, 100_000]
    first = kernel.on(0)
    assert launches() == []
    x = rows()
    first(x.data_ptr(), x.data_ptr())
    (launch,) = launches()
    assert ([*launch.grid], [*launch.block], launch.shared) == ([4, 2, 1], [128, 1, 1], 100_000)


def test_a_gpu_with_too_little_shared_memory_is_refused() -> None:
    lacks = "kernel k on cuda:1: a block takes 240000 bytes of shared memory, and NVIDIA H100 80GB HBM3 has 232448; .*rebuild"
    with pytest.raises(TargetUnavailable, match=lacks):
        LoadedKernel(cubin("too much"), "k", LaunchShape((1,), 32, 240_000), 1)
    fail("cuKernelSetAttribute", 1)
    with pytest.raises(TargetUnavailable, match="kernel k on cuda:1: the GPU cannot give a block 230000 bytes of shared memory"):
        LoadedKernel(cubin("more than it says"), "k", LaunchShape((1,), 32, 230_000), 1)


A100 = SimpleNamespace(
    name="NVIDIA A100-SXM4-80GB", major=8, minor=0, multi_processor_count=108, shared_memory_per_multiprocessor=167936
)
B300 = SimpleNamespace(
    name="NVIDIA B300 SXM6 AC", major=10, minor=3, multi_processor_count=148, shared_memory_per_multiprocessor=233472
)


def test_code_for_another_gpu_is_refused_in_a_line_before_the_driver_is_asked() -> None:
    executable = built("one", FOLDER)
    inputs = [on(1, torch.randn(node.output.shape).half()) for node in executable.graph.inputs()]
    torch_side.properties[1] = A100
    lacks = "code for sm_90a? needs compute capability 9.0.*, and NVIDIA A100-SXM4-80GB has 8.0; `mugraph rebuild"
    with pytest.raises(TargetUnavailable, match=f"^kernel .* on cuda:1: {lacks}") as caught:
        executable(*inputs)
    assert "\n" not in str(caught.value)
    assert (launches(), DRIVER.stub_loads()) == ([], 0)


@pytest.mark.parametrize(
    ("architecture", "gpu", "runs"),
    [
        ("sm_100", B300, True),
        ("sm_100f", B300, True),
        ("sm_100a", B300, False),
        ("sm_103", B300, True),
        ("sm_103", SimpleNamespace(**{**vars(B300), "minor": 0}), False),
        ("sm_90a", torch_side.H100, True),
        ("sm_80", torch_side.H100, False),
    ],
)
def test_code_runs_where_its_instructions_are(architecture: str, gpu: SimpleNamespace, runs: bool) -> None:
    torch_side.properties[0] = gpu
    code = Cubin(f"{architecture} on {gpu.name}".encode(), architecture, "")
    if runs:
        LoadedKernel(code, "k", LARGE)
        return
    with pytest.raises(TargetUnavailable, match=f"kernel k on cuda:0: code for {architecture} needs compute capability"):
        LoadedKernel(code, "k", LARGE)


@pytest.mark.parametrize(("gpu", "target"), [(A100, "cuda:sm_80:a100-80gb"), (B300, "cuda:sm_103:b300")])
def test_a_target_without_an_architecture_is_the_gpu_that_is_here(gpu: SimpleNamespace, target: str) -> None:
    torch_side.properties[0] = gpu
    assert resolved("cuda") == target
    assert device_for("cuda") == device_for(target)
    machine, other = machine_for("cuda"), machine_for("cuda:sm_90")
    assert machine == machine_for(target)
    assert (machine.available, other.available) == (True, False)
    torch_side.exchange_device(1)
    assert resolved("cuda") == "cuda:sm_90:h100"
    assert other.available


@pytest.mark.parametrize(("device", "target"), [(0, "cuda:sm_80:a100-80gb"), (1, "cuda:sm_90:h100")])
def test_example_inputs_on_a_gpu_say_the_target(device: int, target: str) -> None:
    """Whichever GPU is the current one before: theirs is, while something is found for it."""
    torch_side.properties[0] = A100
    example = {"x": on(device, rows()), "parts": [torch.zeros(())]}
    for before in (0, 1):
        torch_side.exchange_device(before)
        with target_of_inputs(None, example) as chosen:
            assert (chosen, torch_side.current_device()) == (target, device)
            assert machine_for(chosen).available
        assert torch_side.current_device() == before
    with pytest.raises(InvalidInput, match="tensors lie on cuda:0 and cuda:1; move them"):
        mugraph.superoptimize(torch.add, (on(0, rows()), on(1, rows())))


def test_kernels_answer_calls_of_the_decorator_on_a_gpu_that_is_not_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_side.properties[0] = A100
    faster = SimpleNamespace(clear=True)
    report = SimpleNamespace(interrupted=False, baselines={EAGER: faster})
    found = SimpleNamespace(found=True, target="cuda:sm_90:h100", report=report)
    monkeypatch.setattr("mugraph.integrations.decorator.superoptimize", lambda *_, **__: found)
    optimized = mugraph.optimize(lambda x, y: x + y)
    assert isinstance(optimized, Optimized)
    (reason, other) = (optimized._optimized((on(device, rows()),) * 2, {}, {}).reason for device in (1, 0))
    assert reason == ""
    assert other == "kernels for cuda:sm_90:h100 cannot run on this machine"


@pytest.mark.parametrize(
    ("call", "error", "kind", "message"),
    [
        (
            "cuLibraryLoadData",
            2,
            LaunchFailed,
            "reading its machine code for sm_90a failed with CUDA_ERROR_OUT_OF_MEMORY; free mem",
        ),
        ("cuLibraryLoadData", 200, LaunchFailed, "failed with CUDA_ERROR_INVALID_IMAGE; the driver cannot read the machine code"),
        ("cuKernelGetFunction", 2, LaunchFailed, "loading it failed with CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuKernelGetFunction", 209, TargetUnavailable, "this GPU is of another architecture; .*rebuild"),
        ("cuKernelSetAttribute", 999, LaunchFailed, "asking for shared memory failed with CUDA_ERROR_UNKNOWN$"),
        (
            "cuLaunchKernelEx",
            719,
            LaunchFailed,
            "launching it failed with CUDA_ERROR_LAUNCH_FAILED; it or a kernel before",
        ),
        ("cuLaunchKernelEx", 700, LaunchFailed, "launching it failed with CUDA_ERROR_ILLEGAL_ADDRESS; it or a kernel before it"),
        ("cuLaunchKernelEx", 701, LaunchFailed, "a block asks for more than a multiprocessor has; optimize for this device"),
        ("cuLaunchKernelEx", 2, LaunchFailed, "launching it failed with CUDA_ERROR_OUT_OF_MEMORY; free memory"),
    ],
)
def test_what_the_driver_refuses_names_the_kernel_and_is_tried_again(
    call: str, error: int, kind: type[MugraphError], message: str
) -> None:
    copy_rows()
    kernel = Launcher(cubin(f"{call} {error}"), "failing_kernel", LARGE)
    x, y = rows(), rows()
    fail(call, error)
    with pytest.raises(kind, match=f"^kernel failing_kernel on cuda:0: .*{message}") as caught:
        kernel(x.data_ptr(), y.data_ptr())
    assert "\n" not in str(caught.value)
    assert launches() == []
    kernel(x.data_ptr(), y.data_ptr())
    assert torch.equal(x, y)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(TargetUnavailable, match="there is no cuda:2; PyTorch sees 2 devices"):
        built("one", FOLDER).load(2)


def in_thread(call: Callable[[], object]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("device", [0, 1])
def test_a_thread_without_a_context_launches_and_loads(device: int) -> None:
    executable, x = built("two", FOLDER), on(device, rows())
    in_thread(lambda: executable(x))
    in_thread(lambda: executable(x))
    built("two", FOLDER)(x)
    assert [launch.device for launch in launches()] == [device] * 6


def test_threads_never_launch_with_each_others_arguments() -> None:
    copy_rows()
    executable = built("three", FOLDER)
    wrong: list[int] = []

    def calls(number: int) -> None:
        for _ in range(100):
            x = on(number % 2, torch.full(SHAPE, float(number)))
            (y,) = executable(x)
            if not torch.equal(held(x), held(y)):
                wrong.append(number)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert wrong == []
    assert len(launches()) == 8 * 100 * 3


def test_calls_that_look_alike_are_recognized_and_others_are_not() -> None:
    executable = built("two", FOLDER)
    x = on(1, rows())
    assert executable.recognized((x,)) is None
    executable(x)
    assert executable.recognized((on(1, rows()),)) is not None
    for other in (on(0, rows()), on(1, rows()).half(), on(1, rows()[:32]), on(1, rows().T.contiguous()), at_offset(x, 1), rows()):
        assert executable.recognized((other,)) is None
    assert executable.recognized((x, x)) is None
    assert executable.recognized(()) is None
    with pytest.raises(ShapeMismatch, match="'X' has shape"):
        executable(on(1, rows()[:32]))
    with pytest.raises(InvalidInput, match=r"'X' is torch\.float16"):
        executable(on(1, rows()).half())
    with pytest.raises(InvalidInput, match="cannot be traced"):
        make_fx(lambda y: executable(x)[0] + y)(rows())
    with pytest.raises(InvalidInput, match="cannot be mapped"):
        torch.vmap(lambda y: executable(x)[0] + y)(rows())


def test_tensors_that_kernels_cannot_read_in_place_are_copied_each_time() -> None:
    executable = built("two", FOLDER)
    executable(on(0, rows()))
    misaligned, turned = at_offset(on(0, rows()), 1), on(0, rows().T.contiguous()).T
    for given in (misaligned, turned):
        for _ in range(2):
            DRIVER.stub_forget()
            copy_rows()
            (y,) = executable(given)
            first, _ = launches()
            assert first.operands[0] % 16 == 0
            assert first.operands[0] != given.data_ptr()
            assert torch.equal(held(y), held(given))


def test_kernels_and_libraries_take_turns() -> None:
    executable = built("mixed", FOLDER)
    DRIVER.stub_copies(4 * 64 * 64)
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    for device in (0, 1, 1):
        (y,) = executable(on(device, x), on(device, w))
        assert y.device == torch.device("cuda", device)
        torch.testing.assert_close(held(y), x @ w)


def test_pointers_to_scratch_memory_follow_the_operands() -> None:
    x, y = rows(), rows()
    DRIVER.stub_operands(4)
    Launcher(cubin("scratch"), "k", LARGE, scratch=2)(x.data_ptr(), y.data_ptr())
    (launch,) = launches()
    assert launch.operands[:4] == [x.data_ptr(), y.data_ptr(), 0, 0]


def encoded(launch: Any) -> list[list[int]]:
    """Of the launch's tensor maps, what they were encoded of: address, type, columns, rows, bytes of a row, box, swizzle."""
    return [[*words[:8]] for words in launch.maps[:2]]


def test_tensor_maps_are_encoded_once_for_an_address_and_kept() -> None:
    executable = built("boxes", FOLDER)
    (kernel,) = executable.kernels
    DRIVER.stub_operands(3)
    DRIVER.stub_maps(2)
    x, w, other = (on(0, torch.randn(shape).half()) for shape in ((16, 512), (512, 256), (512, 256)))
    calls = [(x, w), (x, w), (x, other), (x, w)]
    for inputs in calls:
        executable(*inputs)
    assert DRIVER.stub_encodings() == 3
    assert kernel.ring is not None
    for launch, (left, right) in zip(launches(), calls, strict=True):
        left_map, right_map = encoded(launch)
        assert left_map == [left.data_ptr(), 6, 512, 16, 1024, 64, 16, 3]
        assert right_map == [right.data_ptr(), 6, 256, 512, 512, 64, *right_map[6:7], 3]
        assert launch.operands[:2] == [left.data_ptr(), right.data_ptr()]


def test_threads_and_streams_have_tensor_maps_of_their_own() -> None:
    executable = built("boxes", FOLDER)
    DRIVER.stub_operands(3)
    DRIVER.stub_maps(2)
    pairs = [tuple(on(0, torch.randn(shape).half()) for shape in ((16, 512), (512, 256))) for _ in range(8)]

    def call(inputs: tuple[Any, ...]) -> None:
        for _ in range(20):
            executable(*inputs)

    threads = [threading.Thread(target=call, args=(inputs,)) for inputs in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(launches()) == 20 * len(pairs)
    for launch in launches():
        assert [words[0] for words in encoded(launch)] == launch.operands[:2]


def test_the_number_of_slices_goes_with_each_launch_and_decides_about_its_grid() -> None:
    kernels, w = first_slices("rows"), on(1, torch.randn(48, 80))
    DRIVER.stub_operands(4)
    runs = {count: kernels.at(count) for count in (1, 8, 9, 24)}
    expected = []
    for count in (1, 8, 9, 9, 24, 1):
        x = on(1, torch.randn(count, 48))
        for made in (runs[count](x, w), kernels(x, w)):
            assert (made[0].shape, made[0].device) == ((count, 80), torch.device("cuda", 1))
            expected.append(([-(-count // 8), 1, 1], [x.data_ptr(), w.data_ptr(), count, made[0].data_ptr()]))
    assert [([*launch.grid], launch.operands[:4]) for launch in launches()] == expected
    assert DRIVER.stub_loads() <= 1, "nothing is compiled or loaded for a size"


def test_tensor_maps_end_with_the_slices_of_a_call() -> None:
    kernels, w = first_slices("boxes"), on(0, torch.randn(512, 256).half())
    DRIVER.stub_operands(4)
    DRIVER.stub_maps(2)
    x = on(0, torch.randn(16, 512).half())
    for count in (16, 5, 5, 16):
        kernels(x[:count], w)
    assert [[words[3] for words in encoded(launch)] for launch in launches()] == [[16, 512], [5, 512], [5, 512], [16, 512]]
    assert DRIVER.stub_encodings() == 3, "one for each number of rows, and one of w"


@pytest.mark.parametrize("count", [1, 24])
def test_the_host_has_a_budget_for_slices(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for kernels of one size, one of which takes 180."""
    made = on(0, torch.empty(count, 80))
    guards: Any = torch._C._dynamo.guards
    monkeypatch.setattr(guards, "_empty_strided_cuda", lambda shape, strides, dtype: made)
    run, x, w = first_slices("rows").at(count), on(0, torch.randn(count, 48)), on(0, torch.randn(48, 80))
    DRIVER.stub_records(0)
    run(x, w)
    run(x, w)
    seconds, unit = best(lambda: run(x, w)), calibration()
    print(f"{count} slices: {1e6 * seconds:.2f} us of the host, {seconds / unit:.0f} calls of a function")
    assert seconds < 270 * unit


@pytest.mark.parametrize("offset", [0, 1])
def test_what_cannot_be_encoded_names_the_kernel(offset: int) -> None:
    matrix = TensorMap("x", DType.FP16, 64, 128, 128, (64, 64))
    kernel = Launcher(cubin("maps"), "with_maps", LaunchShape((1,), 32, 0, ((1, matrix),)))
    x = torch.zeros(64 * 128 + 8, dtype=torch.float16)
    aligned = -(-x.data_ptr() // 16) * 16
    if offset:
        with pytest.raises(LaunchFailed, match="with_maps on cuda:0: encoding a tensor map of x failed with CUDA_ERROR_INVALID"):
            kernel(aligned, aligned + 2 * offset)
    DRIVER.stub_maps(1)
    kernel(aligned, aligned)
    (launch,) = launches()
    assert launch.maps[0][0] == aligned


def test_maps_are_encoded_where_no_context_is_current() -> None:
    executable = built("boxes", FOLDER)
    x, w = (on(0, torch.randn(shape).half()) for shape in ((16, 512), (512, 256)))
    DRIVER.stub_operands(3)
    fail("cuTensorMapEncodeTiled", 201)
    executable(x, w)
    fail("cuTensorMapEncodeTiled", 201, times=2)
    with pytest.raises(LaunchFailed, match="encoding a tensor map"):
        executable(x, on(0, torch.randn(512, 256).half()))
    assert len(launches()) == 1


def test_the_first_call_may_be_captured() -> None:
    copy_rows()
    x, graph = on(1, rows()), torch_side.Graph()
    fresh = Launcher(cubin("never seen"), "k", LARGE)
    with torch.cuda.device(1), torch_side.capture(graph):
        (y,) = built("two", FOLDER)(x)
        fresh(x.data_ptr(), x.data_ptr())
    assert {launch.stream for launch in launches()} == {torch_side.Stream().handle + 0x1000}
    assert not torch.equal(held(x), held(y))
    graph.replay()
    assert torch.equal(held(x), held(y))


def test_loading_is_what_the_first_call_would_do() -> None:
    copy_rows()
    executable = built("two", FOLDER)
    executable.load(1)
    fail("cuLibraryLoadData", 2, times=100)
    fail("cuKernelGetFunction", 2, times=100)
    x = on(1, rows())
    assert torch.equal(held(executable(x)[0]), held(x))
    with pytest.raises(LaunchFailed, match="on cuda:0"):
        executable(on(0, rows()))


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """How to call a program: PyTorch's tracing asks more of GPUs than is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return trace(function, inputs)


def result(name: str, calling: Any = None) -> Superoptimized:
    """What a search for the program might have returned, without its evidence."""
    executable = built(name, FOLDER)
    graph = executable.graph
    unknown = cast("Any", None)
    return Superoptimized(graph, unknown, (), unknown, executable, calling or Positional.of(graph), TARGET)


def test_a_graphed_result_copies_its_inputs_and_its_outputs() -> None:
    graphed = result("two").graphed(1)
    copy_rows()
    first, second = on(1, rows()), on(1, rows())
    results = graphed(first), graphed(second)
    assert [tensor.device.index for tensor in results] == [1, 1]
    assert torch.equal(held(results[0]), held(first))
    assert torch.equal(held(results[1]), held(second))
    (static,) = graphed.inputs
    static.copy_(first)
    assert torch.equal(held(graphed(static)), held(first))
    with pytest.raises(
        InvalidInput, match=r"'X' is on cuda:0, and the graph was captured on cuda:1: move it with .to\('cuda:1'\)"
    ):
        graphed(on(0, rows()))
    with pytest.raises(ShapeMismatch, match="X has shape"):
        graphed(on(1, rows()[:32]))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("device", [0, 1])
def test_fake_kernels_of_operators_say_what_real_ones_do(device: int) -> None:
    """Where outputs lie, and which inputs are refused. The real one is called directly: the dispatcher knows no such tensors."""
    opt = result("mixed")
    operator = torch_operator(f"mugraph_stub::mixed_{device}", opt)
    tensors = torch.randn(64, 64), torch.randn(64, 64)
    (real,) = opt.executable(*(on(device, tensor) for tensor in tensors))
    with FakeTensorMode():
        fakes = [torch.empty(64, 64, device=f"cuda:{device}") for _ in tensors]
        fake = operator(*fakes)
        others = [(torch.empty(64, 64, device=f"cuda:{1 - device}"), 1 - device), (torch.empty(64, 64), None)]
        assert (fake.device, fake.shape, fake.dtype, fake.stride()) == (real.device, real.shape, real.dtype, real.stride())
        said = [refusal(partial(operator, fakes[0], other)) for other, _ in others]
    first = on(device, tensors[0])
    reals = [tensors[1] if index is None else on(index, tensors[1]) for _, index in others]
    assert said == [refusal(partial(opt.executable, first, other)) for other in reals]
    for place, text in zip((f"cuda:{1 - device}", "cpu"), said, strict=True):
        assert text.startswith(
            f"input 'w' is on {place}, and other inputs on cuda:{device}; all tensors of a call lie on one GPU"
        )


@pytest.mark.parametrize("device", [0, 1])
def test_constants_of_a_function_lie_where_the_tensors_of_a_call_do(device: int) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.tanh(x) @ torch.arange(4096.0).reshape(64, 64))

    opt = result("mixed", traced(product, torch.randn(64, 64)))
    DRIVER.stub_copies(4 * 64 * 64)
    x, w = torch.randn(64, 64), torch.arange(4096.0).reshape(64, 64)
    for _ in range(2):
        y = opt(on(device, x))
        assert y.device == torch.device("cuda", device)
        torch.testing.assert_close(held(y), x @ w)
    graphed = opt.graphed(device)
    graphed(on(device, x))
    graphed(on(device, x))


@pytest.mark.parametrize("device", [0, 1])
def test_saved_constants_lie_where_the_tensors_of_a_call_do(device: int) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.tanh(x) @ torch.arange(4096.0).reshape(64, 64))

    called = traced(product, torch.randn(64, 64))
    saved = result("mixed", Positional(GRAPHS["mixed"], {"output": 0}, called.constants, called.signature_record))
    DRIVER.stub_copies(4 * 64 * 64)
    x, w = torch.randn(64, 64), torch.arange(4096.0).reshape(64, 64)
    for opt in (saved, saved.bound_to(product)):
        for _ in range(2):
            y = opt(on(device, x))
            assert y.device == torch.device("cuda", device)
            torch.testing.assert_close(held(y), x @ w)


@pytest.mark.parametrize("device", [1, 0])
def test_functions_with_calls_of_pytorch_between_kernels_run_where_their_tensors_are(
    device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE", "on")  # has the machine code
    opt = mugraph.load(FOLDER / DIVIDED)
    copy_rows()
    x, g = rows(), torch.randn(SHAPE[1])
    for _ in range(2):
        y, z = opt(on(device, x), on(device, g))
        assert y.device == z.device == torch.device("cuda", device)
        torch.testing.assert_close(held(y), x.cumsum(-1))
        torch.testing.assert_close(held(z), g.cumprod(0))
    assert [launch.device for launch in launches()] == [device] * 4
    here, there = f"cuda:{device}", f"cuda:{1 - device}"
    for inputs, text in (
        ((on(1 - device, x), on(device, g)), f"input 'g' of divided is on {here}, and 'x' on {there}; all tensors of a call lie"),
        ((x, on(device, g)), f"input 'x' of divided is on cpu, and 'g' on {here}; .* move it with .to('{here}')"),
    ):
        with pytest.raises(InvalidInput, match=text.replace("(", r"\(").replace(")", r"\)")):
            opt(*inputs)


def test_static_outputs_are_the_graphs_own() -> None:
    copy_rows()
    graphed = result("two").graphed(static_outputs=True)
    first, second = on(0, rows()), on(0, rows())
    before, after = graphed(first), graphed(second)
    assert before is after
    assert torch.equal(held(before), held(second))


def test_parameters_are_read_where_they_lie_and_may_not_be_replaced() -> None:
    module = torch.nn.Linear(64, 64, bias=False)
    opt = result("mixed", traced(module, torch.randn(64, 64)))
    module.weight = torch.nn.Parameter(on(0, module.weight.detach()), requires_grad=False)
    graphed = opt.graphed(0)
    x = on(0, torch.randn(64, 64))
    graphed(x)
    graphed(x)
    module.weight = torch.nn.Parameter(on(0, torch.randn(64, 64)), requires_grad=False)
    with pytest.raises(InvalidInput, match=r"w is another tensor than when the CUDA graph was captured; call graphed\(\) again"):
        graphed(x)


def best(call: Callable[[], object], times: int = 200) -> float:
    """The least seconds of a call: of many short loops some meet no other process."""
    found = float("inf")
    for _ in range(60):
        start = time.perf_counter()
        for _ in range(times):
            call()
        found = min(found, (time.perf_counter() - start) / times)
    return found


def nothing(*arguments: object) -> object:
    return arguments


def calibration() -> float:
    """Seconds that this host takes for a call of a function of Python's."""
    return best(lambda: nothing(1, 2, 3)) / 2


@pytest.mark.parametrize(("name", "budget"), [("one", 180), ("two", 205), ("three", 230)])
def test_the_host_has_a_budget(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls of a function of Python's, which take some 50 ns: twice what was measured. Without what allocating takes, which is
    PyTorch's business: each output is made once and given again."""
    guards: Any = torch._C._dynamo.guards
    made: dict[Any, Any] = {}

    def allocate(shape: Any, strides: Any, dtype: Any) -> Any:
        if (shape, dtype) not in made:
            made[shape, dtype] = on(0, torch.empty(shape, dtype=dtype))
        return made[shape, dtype]

    monkeypatch.setattr(guards, "_empty_strided_cuda", allocate)
    opt = result(name)
    inputs = [on(0, torch.randn(node.output.shape).to(DTYPES[node.output.dtype])) for node in opt.program.inputs()]
    DRIVER.stub_records(0)
    opt(*inputs)
    assert opt.executable.recognized(inputs) is not None
    seconds, unit = best(lambda: opt(*inputs)), calibration()
    recognized = best(lambda: opt.executable._recognized[0][0](inputs))
    slow = best(lambda: torch.empty(SHAPE, device="cpu"))
    fast = best(lambda: guards._empty_strided_cpu(SHAPE, (256, 1), torch.float32))
    print(f"{name}: {1e6 * seconds:.2f} us of the host, {seconds / unit:.0f} calls of a function; ", end="")
    print(f"recognizing inputs {1e6 * recognized:.2f}, allocating on the CPU {1e6 * fast:.2f}, by torch.empty {1e6 * slow:.2f}")
    assert seconds < budget * unit
