"""Running torch.export: from a function and example arguments to a recorded ATen graph, or one line saying why not."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.autograd import forward_ad
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend.calls.objects import leaves_of
from mugraph.frontend.calls.origins import likely_captured
from mugraph.frontend.calls.pytree import Arguments
from mugraph.frontend.recording.calls import Calls, calls_any
from mugraph.frontend.recording.compiler_questions import heard
from mugraph.frontend.recording.composites import fewer_overrides, has_operators_of_others
from mugraph.frontend.recording.decompositions import composite_decompositions, decompositions
from mugraph.frontend.recording.given_operands import with_operands_as_given
from mugraph.frontend.recording.kept_tensors import Held, Made
from mugraph.frontend.recording.quiet import quietly
from mugraph.frontend.recording.watch import Watch, like
from mugraph.frontend.rewriting.flex_attention import failed_to_reach_it, reaching_the_operator, written_out
from mugraph.frontend.source_lines import from_users_code, line_of_error, with_recorded_lines

_CHECKED = "aten::linalg_"
"""Operators, by the beginning of their names, some of which become calls for results and for errors, which are done in order."""
_READ = frozenset({"", "_operator", "builtins", "math", "torch"})
"""Modules whose functions are called in the graphs that Dynamo makes of what it reads."""
_NOT_RECORDED = {
    ".numpy() is not supported for tensor subclasses": "tensors have no numbers for NumPy while they are traced",
    "does not require grad and does not have a grad_fn": "no gradients are recorded while a function is traced",
    "found a fake tensor in the exported program": "no gradients of the function's own, nor writes through .data, are recorded",
    "Cannot access data pointer": "tensors have no numbers while they are traced, nor in transforms of torch.func",
    "Unable to cast NotImplemented": "it captures a tensor of a class of its own, as which nothing is recorded",
}
"""By words of PyTorch's, why it cannot record what it can run."""
_SHAPE_COMPLAINT = re.compile(r"shape|size|dim|broadcast|expand", re.IGNORECASE)


class Recorder(torch.nn.Module):
    """The function as a module from a flat list of tensors to one, which is all that torch.export has to know of it.

    The tensors are those of the arguments and then, in the place of the `captured` ones that no module owns, tensors like them.
    """

    def __init__(self, fn: Callable[..., Any], arguments: Arguments, watch: Watch, held: Held) -> None:
        super().__init__()
        self.fn = with_recorded_lines(fn)
        self.arguments = arguments
        self.watch = watch
        self.held = held

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Call the function, and keep what it returned for its structure."""
        own = len(self.arguments.tensors)
        kept: list[str] = []
        made = Made(tensors[:own], [*self.parameters(), *self.buffers(), *tensors[own:]])
        self.held.looked_at_again()
        versions = [None if tensor.is_inference() else tensor._version for tensor in tensors[own:]]
        try:
            with self.watch.instead(tensors[:own], tensors[own:], made, self), heard():
                returned = self.arguments.call(self.fn, tensors[:own])
        finally:
            kept = self.held.taken_back(made, self.watch.instead_of)
        if kept:
            remedy = "return it instead; where it only fills a cache, call the function once before"
            raise InvalidInput(f"{self.watch.name} keeps a tensor in {kept[0]}, which no result would do: {remedy}")
        self.watch.returned = returned
        self.watch.writes_captured = any(
            version is not None and tensor._version != version for tensor, version in zip(tensors[own:], versions, strict=True)
        )
        return [leaf for leaf in leaves_of(returned) if is_computed(leaf)]


def is_computed(leaf: Any) -> bool:
    """Whether a result is a tensor, or a number that is read from one."""
    return isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)


@dataclass(frozen=True, slots=True)
class Recording:
    """A function as torch.export has recorded it."""

    exported: ExportedProgram
    recorder: Recorder
    captured: tuple[torch.Tensor, ...]
    """The tensors that are inputs of the program after the arguments' because the function captures them, or might."""
    _taken_apart: list[ExportedProgram] = field(default_factory=list, repr=False, compare=False)
    """What is decomposed for `in_calls`, once it was asked for."""

    def in_rows(self) -> Calls:
        """The recorded calls, with everything that has no row decomposed as far as PyTorch can.

        Where PyTorch has kernels for nothing of that, it is what `in_calls` gives.
        """
        table = decompositions()
        if calls_any(self.exported, table.keys() - composite_decompositions().keys()):
            return Calls.of(self._decomposed(table))
        program = self._in_calls()
        return Calls.of(self._decomposed(table) if calls_any(program, table.keys()) else program)

    def in_calls(self) -> Calls:
        """The recorded calls, with only that decomposed which PyTorch has no kernel for, and which has no row."""
        return Calls.of(self._in_calls())

    def _in_calls(self) -> ExportedProgram:
        if not self._taken_apart:
            self._taken_apart.append(self._decomposed(composite_decompositions()))
        return self._taken_apart[0]

    def _decomposed(self, table: Mapping[Any, Callable[..., Any]]) -> ExportedProgram:
        """The recorded calls but for those in `table`. Raises InvalidInput for what PyTorch records and cannot decompose, and
        UnsupportedOperator where it loses casts."""
        name = getattr(self.recorder.fn, "__name__", type(self.recorder.fn).__name__)
        try:
            program = _decomposed(self.exported, table)
        except (RuntimeError, TypeError) as error:  # as for gradients inside the function
            _refuse(name, error)
        if _types_of_results(program) != _types_of_results(self.exported):
            raise UnsupportedOperator(f"{name}: PyTorch loses casts of autocast where it takes operators apart; cast by hand")
        return program

    @property
    def literals(self) -> frozenset[str]:
        """Placeholders of tensors that the function itself writes down, as in torch.tensor(0.5)."""
        lifted = torch.ops.aten.lift_fresh_copy.default
        return frozenset(node.args[0].name for node in self.exported.graph.nodes if node.target is lifted)

    @property
    def returned(self) -> Any:
        """What the function returned: its structure, with tensors without data."""
        return self.recorder.watch.returned


def record(name: str, fn: Callable[..., Any], arguments: Arguments, examples: Sequence[torch.Tensor]) -> Recording:
    """Record `fn` on tensors like `examples`, those among its arguments; every argument is a tensor of its own, and so is what
    the function captures. Raises the error that says what of it cannot be a program."""
    with quietly(), torch.no_grad(), reaching_the_operator():
        try:
            held = Held([fn, *(leaf.constant for leaf in arguments.leaves if not leaf.is_tensor)])

            def recorded(captured: Sequence[torch.Tensor], looks_for_more: bool = True) -> Recording:
                recorder = Recorder(fn, arguments, Watch(name, captured, looks_for_more), held)
                return Recording(_exported(recorder, [*examples, *captured]), recorder, tuple(captured))

            for likely in (_captured_before(fn), likely_captured(fn)):
                if likely and (found := _recorded_with(likely, recorded)) is not None:
                    _remember(fn, found.recorder.watch.reached)
                    return found
            found = recorded(())
            if captured := found.recorder.watch.reached:
                found = recorded(captured, looks_for_more=False)
                _remember(fn, captured)
            return found
        except (Exception, SystemExit) as error:  # whatever the function raises is a fact about the function
            _refuse(name, error)


_CAPTURED_BEFORE: MutableMapping[Callable[..., Any], list[weakref.ref[torch.Tensor]]] = WeakIdKeyDictionary()
"""Weak references to the tensors that a function captured when it was recorded last, by function."""


def _remember(fn: Callable[..., Any], captured: Sequence[torch.Tensor]) -> None:
    """Keep in mind what a function captures, unless it is an object that takes no weak references."""
    with contextlib.suppress(TypeError):
        _CAPTURED_BEFORE[fn] = [weakref.ref(tensor) for tensor in captured]


def _captured_before(fn: Callable[..., Any]) -> list[torch.Tensor]:
    """What a function captured when it was recorded last, as far as it is still there."""
    try:
        references = _CAPTURED_BEFORE.get(fn, [])
    except TypeError:  # no weak references
        return []
    return [tensor for reference in references if (tensor := reference()) is not None]


def _recorded_with(captured: Sequence[torch.Tensor], recorded: Callable[[Sequence[torch.Tensor]], Recording]) -> Recording | None:
    """The function as it is recorded with inputs for some tensors; None where it captures others, too, writes to one of them or
    cannot be recorded so: then it is found out anew."""
    try:
        found = recorded(captured)
    except (Exception, SystemExit):  # whatever the function raises, it raises again
        return None
    watch, given = found.recorder.watch, set(map(id, captured))
    return None if watch.writes_captured or any(id(tensor) not in given for tensor in watch.reached) else found


def recorded_at_all_sizes(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dims: Mapping[int | str, Mapping[int, torch.export.Dim]],
) -> ExportedProgram:
    """The calls of `fn` with symbols for the sizes of `dims`, by argument and position: those at every size in the ranges.

    Arguments are all positional or all named. Dynamo reads the function's bytecode here, so that whatever Python asks of a size
    becomes a condition. Raises what PyTorch raises where not all sizes in the ranges meet all conditions, or where it cannot read
    the function, and UnsupportedOperator for a condition of several sizes together.
    """
    positional = tuple(dims.get(number, _fixed(value)) for number, value in enumerate(args))
    named = {name: dims.get(name, _fixed(value)) for name, value in kwargs.items()}
    with quietly(), torch.no_grad(), _spelled_attention():
        stand_ins = tree_map_only(torch.Tensor, like, (tuple(args), dict(kwargs)))
        capture = torch._dynamo.export(
            _Called(fn) if args else _CalledByName(fn),
            dynamic_shapes={"args": positional} if args else {"kwargs": named},
            assume_static_by_default=True,
            tracing_mode="symbolic",
        )
        calls = capture(*stand_ins[0], **stand_ins[1]).graph_module
        _check_read(calls)
        _check_conditions(calls.graph)
        program = torch.export.export(written_out(calls), *stand_ins, dynamic_shapes=positional if args else named, strict=False)
        _check_conditions(program.graph)
        return with_operands_as_given(program)


def _fixed(value: Any) -> Any:
    """What says that no size of an argument varies: of a container, of each thing in it."""
    return tree_map(lambda _: None, value)


@contextlib.contextmanager
def _spelled_attention() -> Iterator[None]:
    """Modules of attention call the operators that they are made of, not one that does all of it, as where they are traced."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _check_read(calls: torch.fx.GraphModule) -> None:
    """Raise UnsupportedOperator where Dynamo left a call of the user's Python as it is (`torch._dynamo.allow_in_graph`)."""
    for node in calls.graph.nodes:
        if node.op in ("call_function", "call_module"):
            called = type(calls.get_submodule(node.target)) if node.op == "call_module" else node.target
            if (getattr(called, "__module__", None) or "").partition(".")[0] not in _READ:
                raise UnsupportedOperator(f"{node.name} is Python that Dynamo does not read; leave allow_in_graph out")


def _check_conditions(graph: torch.fx.Graph) -> None:
    """Raise UnsupportedOperator for a condition of several sizes together: PyTorch does not ask whether all in their ranges meet
    such a one, unless it is that two are the same."""
    values = (node.meta.get("val") for node in graph.nodes if node.op == "placeholder")
    sizes: Iterator[Any] = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    environment = next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)
    for guard in () if environment is None else environment.guards:
        if len(guard.expr.free_symbols) > 1 and not _are_same(guard.expr):
            raise UnsupportedOperator(f"what it does depends on several sizes together: {guard.expr}")


def _are_same(condition: Any) -> bool:
    """Whether a condition says that two sizes are the same, in other words (`a + 1 == b + 1`) or among others, as where both are
    broadcast."""
    if condition.func.__name__ == "Or":  # of sympy, which PyTorch brings along
        return any(map(_are_same, condition.args))
    if not (condition.is_Relational and condition.rel_op == "=="):
        return False
    terms = (condition.lhs - condition.rhs).as_coefficients_dict()
    return len(terms) == 2 and all(term.is_Symbol for term in terms) and sum(terms.values()) == 0


class _Module(torch.nn.Module):
    """A function as a module with one parameter: where a function calls nothing, Dynamo looks for an argument for each."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn


class _Called(_Module):
    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


class _CalledByName(_Module):
    def forward(self, **kwargs: Any) -> Any:
        return self.fn(**kwargs)


def _decomposed(program: ExportedProgram, table: Mapping[Any, Callable[..., Any]]) -> ExportedProgram:
    listening = heard() if has_operators_of_others(program.graph) else contextlib.nullcontext()
    with quietly(), torch.no_grad(), _transforms_left(), fewer_overrides(program.graph), listening:
        decomposed: ExportedProgram = program.run_decompositions(dict(table))
        if any(spec.kind is OutputKind.TOKEN for spec in decomposed.graph_signature.output_specs):
            without = {op: table[op] for op in table if not op.name().startswith(_CHECKED)}
            decomposed = program.run_decompositions(without)
        return decomposed


def _types_of_results(program: ExportedProgram) -> list[torch.dtype | None]:
    """The element types of what the function returns, None for numbers."""
    results = program.graph.output_node().args[0]
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    return [
        getattr(result.meta.get("val"), "dtype", None) if isinstance(result, torch.fx.Node) else None
        for result, kind in zip(results, kinds, strict=True)
        if kind is OutputKind.USER_OUTPUT
    ]


def _exported(recorder: Recorder, examples: Sequence[torch.Tensor]) -> ExportedProgram:
    return with_operands_as_given(torch.export.export(recorder, tuple(map(like, examples)), strict=False))


def _refuse(name: str, error: Exception | SystemExit) -> NoReturn:
    """Raise the line that a function is refused with; what PyTorch raised is behind it only where the line may not say all."""
    place = line_of_error(error)
    where = f"{name} ({place})" if place else name
    text = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    known = _known_refusal(where, text, error)
    if known is not None:
        raise known.with_traceback(None) from known.__cause__  # of an error of ours that was raised inside; others have none
    raise InvalidInput(f"{where} cannot be traced: {type(error).__name__}: {text}{_hint(error)}") from from_users_code(error)


def _known_refusal(where: str, text: str, error: BaseException) -> MugraphError | None:
    """The error that says all of what is wrong with a function; None where PyTorch's own says more."""
    if isinstance(error, MugraphError):
        return error
    if failed_to_reach_it(error):
        remedy = "use torch.compile(backend='mugraph'), or a PyTorch that calls it as it is"
        return UnsupportedOperator(f"{where}: flex_attention is compiled by PyTorch before it can be traced; {remedy}")
    if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
        remedy = "it may depend on shapes only, or use torch.compile(backend='mugraph')"
        return UnsupportedOperator(f"{where}: control flow depends on the values of a tensor; {remedy}")
    if "is mutated in the forward" in text:
        return InvalidInput(f"{where} changes a tensor it closes over; return the new value instead")
    if isinstance(error, (RuntimeError, ValueError)) and _SHAPE_COMPLAINT.search(text):
        return ShapeMismatch(f"{where}: {text}")
    return None


def _hint(error: BaseException) -> str:
    """What may be done about an error of PyTorch, as the end of its line; "" where nothing is known."""
    if _is_of_gradients(error):
        return "; not all transforms of torch.func can be recorded: use torch.compile(backend='mugraph')"
    if reason := next((reason for words, reason in _NOT_RECORDED.items() if words in str(error)), ""):
        return f"; {reason}: use torch.compile(backend='mugraph')"
    if _may_be_of_another_thread(error):
        cause = "if another thread calls the same module meanwhile, PyTorch's tracer takes its calls for the function's"
        return f"; {cause}: let nobody call it until it is recorded"
    return ""


def _may_be_of_another_thread(error: BaseException) -> bool:
    """Whether PyTorch found its own state wrong while other threads ran: it patches modules for all threads of a process."""
    raised_in = [frame.f_globals.get("__name__") or "" for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    of_torch = any(name.partition(".")[0] == "torch" for name in raised_in)
    return isinstance(error, AssertionError) and of_torch and threading.active_count() > 1


_DIFFERENTIATING = frozenset({"torch._functorch.eager_transforms", "torch._functorch.predispatch"})
"""Modules of PyTorch; what it differentiates it wraps into TensorWrappers."""


def _is_of_gradients(error: BaseException) -> bool:
    """Whether an error came of a transform of torch.func that differentiates, as grad and jvp do."""
    called = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not called.isdisjoint(_DIFFERENTIATING) or "TensorWrapper" in str(error)


@contextlib.contextmanager
def _transforms_left() -> Iterator[None]:
    """Leave the transforms of torch.func that an error broke off: whatever is computed later in the process would be in them."""
    depth, level = torch._C._functorch.get_dynamic_layer_stack_depth(), forward_ad._current_level
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        while forward_ad._current_level > level:
            forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]
        if level < 0 and sys.exc_info()[0] is not None:
            _leave_forward_mode()


def _leave_forward_mode() -> None:
    """Leave a level of forward-mode differentiation that a graph entered by itself, of which PyTorch's Python does not know."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:  # there is one: they do not nest
        level = 0
    torch._C._exit_dual_level(level=level)
