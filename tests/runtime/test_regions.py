"""Kernels of one call in one parallel region: whatever threads do and however late they come, each reads what is done."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lower.graphs import chain_of_kernels, elementwise_kernel
from mugraph.errors import IndexOutOfRange, UntrustedSources
from mugraph.host.array_interface import KernelCall
from mugraph.host.numpy_arrays import NumpyArrays
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.lower.workspace import plan_workspace
from mugraph.runtime import Executable, build
from mugraph.runtime.call_plan import conflicts
from mugraph.support.picking import picked
from mugraph.targets.cpu.calls import CompiledKernel
from mugraph.targets.cpu.machine import SOURCE_NAME, Cpu
from mugraph.testing.mugraphs import random_mugraph
from threads import at_once

SEEDS = range(4)
KERNELS = 6

RENAMED = "".join(
    f"#define {name} planted_{name}\n"
    for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")
)
POOL = """
extern int pthread_create(unsigned long *, void *, void *(*)(void *), void *);
extern int pthread_join(unsigned long, void *);

enum { MOST = 4 };
int planted_team = MOST, planted_order = 1, planted_at_once = 0, planted_late = 0;
static _Thread_local int number, team = 1;
typedef struct { void (*task)(void *); void *data; int number, team; } member;

static void *run_member(void *data)
{
    const member *this = data;
    number = this->number, team = this->team;
    usleep(planted_late * number);
    this->task(this->data);
    number = 0, team = 1;
    return 0;
}

int omp_get_thread_num(void) { return number; }
int omp_get_num_threads(void) { return team; }
int omp_get_max_threads(void) { return MOST; }

void GOMP_parallel(void (*task)(void *), void *data, unsigned most, unsigned flags)
{
    member members[MOST];
    unsigned long threads[MOST];
    const int all = planted_team < (int)most ? planted_team : (int)most;
    for (int place = 0; place < all; ++place)
        members[place] = (member){task, data, planted_order < 0 ? all - 1 - place : place, all};
    if (planted_at_once) {
        for (int place = 0; place < all; ++place)
            pthread_create(threads + place, 0, run_member, members + place);
        for (int place = 0; place < all; ++place)
            pthread_join(threads[place], 0);
    } else
        for (int place = 0; place < all; ++place)
            run_member(members + place);
}
"""
"""A pool whose threads come one after another, in an order, or at once, each later than the one before it."""
POOLS: dict[str, dict[str, int]] = {
    "one after another": {},
    "the last one first": {"order": -1},
    "fewer than asked for": {"team": 3},
    "a team of one": {"team": 1},
    "at once": {"at_once": 1},
    "late": {"at_once": 1, "late": 500},
}
TAKEN = "worker->blocks += worker->last - first;"
HELD = f"{TAKEN} if (worker->thread) usleep(300 * worker->thread);"
"""What is done with blocks that are taken by all threads but the first: they are run later."""


@pytest.fixture(autouse=True)
def _all_kernels_are_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.targets.cpu.printer._SERIAL_WORK", 0)


def inputs_of(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]


def with_planted_pool(graph: Graph, held: bool = False) -> Executable:
    text = build(graph).sources[SOURCE_NAME]
    assert text.count(TAKEN) == 1
    text = text.replace(TAKEN, HELD) if held else text
    return Executable(graph, Cpu(), {SOURCE_NAME: RENAMED + text + POOL})


def library_of(executable: Executable) -> ctypes.CDLL:
    (library,) = {function.library for function in executable._functions.values() if isinstance(function, CompiledKernel)}
    return library


def set_pool(executable: Executable, team: int = 4, order: int = 1, at_once: int = 0, late: int = 0) -> None:
    library = library_of(executable)
    for name, value in {"team": team, "order": order, "at_once": at_once, "late": late}.items():
        ctypes.c_int.in_dll(library, f"planted_{name}").value = value


def has_register_states() -> bool:
    """Whether the processor tells which registers are in use (`xgetbv` of 1)."""
    about = Path("/proc/cpuinfo")
    return about.exists() and {"xgetbv1", "avx"} <= {*about.read_text(encoding="utf-8").split()}


def one_by_one(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The results of kernels that run one after another on one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mugraph.targets.cpu.printer._SERIAL_WORK", 1 << 62)
        executable = build(graph)
        patch.setattr(NumpyArrays, "launches", lambda self, calls: ordered(calls, lambda ready: ready[0]))
        return executable(*inputs)


def ordered(calls: Sequence[KernelCall], choose: Callable[[list[int]], int]) -> Callable[..., None]:
    """Kernels one by one, each one that is chosen of those that may begin."""
    operands = [picked(call.operands) for call in calls]

    def run(*addresses: int) -> None:
        left = [*range(len(calls))]
        while left:
            number = choose([each for each in left if calls[each].after <= left[0]])
            calls[number].function(*operands[number](addresses))
            left.remove(number)

    return run


def same(results: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(result.tobytes() == wanted.tobytes() for result, wanted in zip(results, expected, strict=True))


def graph_of(seed: int) -> Graph:
    return random_mugraph(random.Random(seed), KERNELS)


def chain(length: int = 4, rows: int = 64) -> Graph:
    """Kernels of which each reads what the one before it made, the rows of others than its own."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("x", (rows, rows), DType.FP32)
    for _ in range(length):
        block = GraphBuilder(Level.BLOCK, grid=(16,))
        columns = block.iterator(0, kernel.tensor(value), (1,), None)
        made = block.add("tanh", block.add("transpose", columns, permutation=(1, 0)))
        (value,) = kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [value])
    return kernel.build([value])


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_those_of_kernels_one_by_one_whatever_threads_do(seed: int) -> None:
    graph = graph_of(seed)
    inputs = inputs_of(graph, seed)
    expected, executable, held = one_by_one(graph, inputs), with_planted_pool(graph), with_planted_pool(graph, held=True)
    for pool in POOLS.values():
        for each in (executable, held):
            set_pool(each, **pool)
            assert same(each(*inputs), expected)


def test_kernels_that_do_not_wait_for_what_they_read_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above could not fail."""
    graph = chain()
    inputs = inputs_of(graph)
    expected, executable = one_by_one(graph, inputs), with_planted_pool(graph, held=True)
    set_pool(executable, at_once=1)
    assert all(same(executable(*inputs), expected) for _ in range(5))
    monkeypatch.setattr("mugraph.runtime.call_plan.conflicts", lambda graph, launches, workspace: [0] * len(launches))
    hurried = with_planted_pool(graph, held=True)
    set_pool(hurried, at_once=1)
    assert not all(same(hurried(*inputs), expected) for _ in range(5))


def test_a_kernel_without_a_pool_runs_on_one_thread() -> None:
    graph = chain()
    inputs = inputs_of(graph)
    text = build(graph).sources[SOURCE_NAME]
    alone = Executable(graph, Cpu(), {SOURCE_NAME: RENAMED + text})
    assert same(alone(*inputs), one_by_one(graph, inputs))


@pytest.mark.parametrize("seed", range(12))
def test_kernels_may_run_in_every_order_that_what_they_wait_for_allows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_mugraph(random.Random(seed), 8)
    inputs = inputs_of(graph, seed)
    expected, rng = one_by_one(graph, inputs), random.Random(seed)
    monkeypatch.setattr(NumpyArrays, "launches", lambda self, calls: ordered(calls, rng.choice))
    executable = build(graph)
    for _ in range(8):
        assert same(executable(*inputs), expected)
    monkeypatch.setattr(NumpyArrays, "launches", lambda self, calls: ordered(calls, max))
    assert same(build(graph)(*inputs), expected)


def test_kernels_wait_for_the_last_one_they_read_or_overwrite() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (8, 8), DType.FP32) for name in "xy")
    first = elementwise_kernel(kernel, "tanh", [x])
    second = elementwise_kernel(kernel, "tanh", [y])
    of_first = elementwise_kernel(kernel, "mul", [first, x])
    both = elementwise_kernel(kernel, "mul", [of_first, second])
    graph = kernel.build([both])
    executable = build(graph)
    workspace = plan_workspace(graph)
    assert conflicts(graph, [*executable.launches.values()], workspace) == [0, 0, 1, 3]


def test_kernels_wait_for_those_that_read_what_they_overwrite() -> None:
    """In the workspace a tensor has the bytes of one that nothing reads any more."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (8, 8), DType.FP32) for name in "xy")
    results = []
    for value in (x, y):
        inner = elementwise_kernel(kernel, "tanh", [value])
        results.append(elementwise_kernel(kernel, "tanh", [inner]))
    graph = kernel.build(results)
    workspace = plan_workspace(graph)
    assert len(workspace.offsets) == 2
    assert len({*workspace.offsets.values()}) == 1
    assert conflicts(graph, [*build(graph).launches.values()], workspace) == [0, 1, 2, 3]


def independent() -> Graph:
    """Two kernels that read one input, each with an output."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (64, 64), DType.FP32)
    return kernel.build([elementwise_kernel(kernel, name, [x]) for name in ("tanh", "relu")])


def test_kernels_that_write_over_an_input_run_in_turn() -> None:
    """What a caller gives to be written may be what the next kernel reads."""
    torch = pytest.importorskip("torch")
    graph = independent()
    executable = with_planted_pool(graph, held=True)
    set_pool(executable, at_once=1)
    x = torch.from_numpy(inputs_of(graph)[0])
    alone = [build(graph)(x)[number] for number in range(2)]
    assert torch.equal(executable(x)[1], alone[1])
    for _ in range(5):
        given = x.clone()
        results = executable.into([given], [given, None])
        assert results[0] is given
        assert torch.equal(given, alone[0])
        assert torch.equal(results[1], alone[0].relu())


def lookups(rows: int = 10) -> Graph:
    """Two kernels, the second of which looks up a table."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (64, 64), DType.FP32)
    table, places = kernel.input("table", (rows, 64), DType.FP32), kernel.input("places", (64,), DType.INT64)
    first = elementwise_kernel(kernel, "tanh", [x])
    found = kernel.add("index_select", table, places, dim=0, negative="refused")
    return kernel.build([first, elementwise_kernel(kernel, "mul", [found, first])])


def test_where_integers_name_no_rows_no_kernel_of_the_call_runs() -> None:
    torch = pytest.importorskip("torch")
    graph = lookups()
    executable = build(graph)
    assert [len(kernel.integers) for kernel in executable.kernels] == [0, 1]
    x, table = torch.randn(64, 64), torch.randn(10, 64)
    places = torch.randint(0, 10, (64,))
    torch.testing.assert_close(executable(x, table, places)[1], x.tanh() * table[places])
    untouched = torch.full((64, 64), 7.0)
    places[5] = 10
    with pytest.raises(IndexOutOfRange, match="10"):
        executable.into([x, table, places], [untouched, None])
    assert bool((untouched == 7).all())


def test_sources_that_another_version_printed_are_refused() -> None:
    """What it exported under the names of kernels were functions."""
    graph = independent()
    kernels = "".join(f"void {kernel.name}(void *in0, void *out0) {{}}" for kernel in build(graph).kernels)
    with pytest.raises(UntrustedSources, match="another version"):
        Executable(graph, Cpu(), {SOURCE_NAME: kernels})


def test_sources_without_a_kernel_are_refused() -> None:
    graph = independent()
    executable = build(graph)
    name = executable.kernels[0].name
    text = executable.sources[SOURCE_NAME].replace(f"const kernel {name} =", "const kernel another =")
    with pytest.raises(UntrustedSources, match=name):
        Executable(graph, Cpu(), {SOURCE_NAME: text})


def test_calls_of_many_kernels_count_on_the_heap() -> None:
    graph = chain(40)
    inputs = inputs_of(graph)
    executable = with_planted_pool(graph)
    for pool in ("at once", "the last one first"):
        set_pool(executable, **POOLS[pool])
        assert same(executable(*inputs), one_by_one(graph, inputs))


LIMITED = "#define aligned_alloc limited\n"
LIMITS = """
#undef aligned_alloc
extern void *aligned_alloc(unsigned long, unsigned long);
int left_to_give = 1 << 30;
void *limited(unsigned long alignment, unsigned long size)
{
    return __atomic_fetch_sub(&left_to_give, 1, __ATOMIC_RELAXED) > 0 ? aligned_alloc(alignment, size) : 0;
}
"""


def products(length: int, rows: int = 64) -> Graph:
    """Kernels of which each multiplies by what the one before it made, with memory of its own for the other factor."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("x", (rows, rows), DType.FP32)
    for _ in range(length):
        block = GraphBuilder(Level.BLOCK, grid=(16,))
        own, whole = (block.iterator(number, kernel.tensor(value), imap, None) for number, imap in enumerate([(0,), (None,)]))
        made = block.add("tanh", block.add("matmul", block.add("tanh", own), whole))
        (value,) = kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [value, value])
    return kernel.build([value])


@pytest.mark.parametrize("length", [4, 40])
def test_calls_whose_blocks_have_no_memory_end_with_an_error(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread waits for blocks that nobody runs; later calls are as if nothing had been."""
    monkeypatch.setattr("mugraph.targets.cpu.printer._STACK_BYTES", 0)
    graph = products(length)
    inputs = inputs_of(graph)
    executable = Executable(graph, Cpu(), {SOURCE_NAME: RENAMED + LIMITED + build(graph).sources[SOURCE_NAME] + POOL + LIMITS})
    expected, left = one_by_one(graph, inputs), ctypes.c_int.in_dll(library_of(executable), "left_to_give")
    for pool in POOLS.values():
        set_pool(executable, **pool)
        for some in (0, 1, 3):
            left.value = some
            with pytest.raises(MemoryError, match=executable.kernels[0].name):
                executable(*inputs)
        left.value = 1 << 30
        assert same(executable(*inputs), expected)


REGISTERS = """
long upper_halves(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return low & 0x44;  /* of ymm and of zmm registers */
}

long registers_in_use;
long run_kernels(const long *plan, void *const *addresses)
{
    const long refused = run_and_leave(plan, addresses);
    registers_in_use |= upper_halves();
    return refused;
}
"""


@pytest.mark.skipif(not has_register_states(), reason="the processor does not tell which registers are in use")
def test_no_vectors_are_left_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python and PyTorch did behind a call of three kernels that left some took 0.8 microseconds longer."""
    monkeypatch.setattr("mugraph.targets.cpu.printer._SERIAL_WORK", 1 << 62)
    graph = chain_of_kernels(3, (8, 8))
    text = build(graph).sources[SOURCE_NAME].replace("long run_kernels(", "static long run_and_leave(")
    executable = Executable(graph, Cpu(), {SOURCE_NAME: text + REGISTERS})
    executable(*inputs_of(graph))
    library = library_of(executable)
    assert not ctypes.c_long.in_dll(library, "registers_in_use").value


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 4], indirect=True)
def test_several_callers_at_once_have_a_region_each(threads: int) -> None:
    import torch

    graphs = [graph_of(0), graph_of(1), chain(), chain(6)]
    cases = [(build(graph), inputs_of(graph)) for graph in graphs]
    expected = [one_by_one(graph, inputs) for graph, (_, inputs) in zip(graphs, cases, strict=True)]

    def call(number: int) -> None:
        torch.set_num_threads(threads)  # a thread of Python has a number of its own
        executable, inputs = cases[number]
        for turn in range(40):
            torch.set_num_threads((threads, 1, 3)[turn % 3])
            assert same(executable(*inputs), expected[number])

    at_once(call, range(len(cases)))


SCRIPT = """
    import os, sys
    import numpy as np, torch
    from mugraph.targets.cpu import printer
    printer._SERIAL_WORK = 0
    from runtime.test_regions import chain, graph_of, inputs_of, one_by_one, same
    from mugraph.runtime import build

    torch.set_num_threads(int(sys.argv[1]))
    for graph in (chain(), graph_of(2)):
        inputs, executable = inputs_of(graph), build(graph)
        expected = one_by_one(graph, inputs)
        for _ in range(100):
            torch.ones(1 << 16).add_(1)  # PyTorch's own region on the same pool
            assert same(executable(*inputs), expected)
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the pool's threads are gone in a forked process, for PyTorch, too
        os._exit(0 if same(executable(*inputs), expected) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("policy", ["active", "passive"])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_that_sleep_and_threads_that_wait_awake_compute_the_same(policy: str, threads: int) -> None:
    pytest.importorskip("torch")
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "OMP_WAIT_POLICY": policy, "PYTHONPATH": path}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
