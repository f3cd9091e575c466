"""Numbers, texts, flags and functions that code reads are seen to be others, wherever they are held."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import itertools
import operator
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from mugraph.frontend.calls.python_state import PythonState, ReachedModules

X = torch.randn(3, 4)
RATE, RATES, TABLE = 2.0, [1.0, 2.0], {"rate": 2.0}
ACTIVATION: Callable[[torch.Tensor], torch.Tensor] = torch.relu


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


@dataclass
class Inner:
    """Settings within settings."""

    rate: float = 2.0
    rates: list[float] = field(default_factory=lambda: [1.0, 2.0])


@dataclass
class Config:
    """Settings as models have them."""

    scale: float = 2.0
    unread: int = 0
    mode: Mode = Mode.FAST
    inner: Inner = field(default_factory=Inner)
    act: Callable[[torch.Tensor], torch.Tensor] = torch.relu

    @property
    def doubled(self) -> float:
        return self.scale * 2


class Slotted:
    """Settings without a dictionary."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


class Mapped:
    """Settings that have their numbers by other names than those of attributes."""

    def __init__(self) -> None:
        self.stored = 2.0

    def __getattr__(self, name: str) -> Any:
        if name == "scale":
            return self.stored
        raise AttributeError(name)


class Base(nn.Module):
    """What classes have."""

    factor = 2.0
    factors = [1.0, 2.0]  # noqa: RUF012  # a test changes it

    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Held(Base):
    """Has settings, and reads them by a function of its own."""

    def __init__(self, config: Any, read: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.config, self.read = config, read
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.relu
        self.sizes = [1.0, 2.0]

    def forward(self, x: torch.Tensor) -> Any:
        return self.read(self, x)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * RATE


class ByGlobals(nn.Module):
    """Reads globals in methods, and by a function that one calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ACTIVATION(helper(x) * RATES[0] + TABLE["rate"])


def state_of(fn: Callable[..., Any]) -> PythonState:
    """The state that a call of the function is recorded with."""
    state = PythonState(fn, ReachedModules(fn).modules)
    fn(X)
    state.settle()
    assert changed(state, fn) is None, "the call itself changes nothing"
    return state


def changed(state: PythonState, fn: Callable[..., Any]) -> str | None:
    return state.changed(ReachedModules(fn).modules)


def setting(path: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute of a module's settings, or of the module."""
    whole, _, name = path.rpartition(".")
    return lambda module: setattr(operator.attrgetter(whole)(module) if whole else module, name, value)


HELD: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor], Any], Callable[[Any], None]]] = {
    "dataclass": (Config, lambda m, x: x * m.config.scale, setting("config.scale", 3.0)),
    "namespace": (lambda: types.SimpleNamespace(scale=2.0), lambda m, x: x * m.config.scale, setting("config.scale", 3.0)),
    "arguments": (lambda: argparse.Namespace(scale=2.0), lambda m, x: x * m.config.scale, setting("config.scale", 3.0)),
    "dict": (lambda: {"scale": 2.0}, lambda m, x: x * m.config["scale"], lambda m: m.config.update(scale=3.0)),
    "slots": (Slotted, lambda m, x: x * m.config.scale, setting("config.scale", 3.0)),
    "of another name": (Mapped, lambda m, x: x * m.config.scale, setting("config.stored", 3.0)),
    "nested": (Config, lambda m, x: x * m.config.inner.rate, setting("config.inner.rate", 3.0)),
    "nested list": (Config, lambda m, x: x * m.config.inner.rates[1], lambda m: operator.setitem(m.config.inner.rates, 1, 9.0)),
    "list that grows": (Config, lambda m, x: x * sum(m.config.inner.rates), lambda m: m.config.inner.rates.append(1.0)),
    "property": (Config, lambda m, x: x * m.config.doubled, setting("config.scale", 3.0)),
    "enum": (Config, lambda m, x: x if m.config.mode is Mode.FAST else -x, setting("config.mode", Mode.EXACT)),
    "function": (Config, lambda m, x: m.config.act(x), setting("config.act", torch.tanh)),
    "other settings": (Config, lambda m, x: x * m.config.scale, setting("config", Config(scale=3.0))),
    "other inner settings": (Config, lambda m, x: x * m.config.inner.rate, setting("config.inner", Inner(rate=3.0))),
    "by text": (Config, lambda m, x: x * getattr(m.config, "scale"), setting("config.scale", 3.0)),  # noqa: B009
    "by path": (Config, lambda m, x: x * operator.attrgetter("inner.rate")(m.config), setting("config.inner.rate", 3.0)),
    "all": (Config, lambda m, x: x * vars(m.config)["scale"], setting("config.scale", 3.0)),
    "in a list": (lambda: [Config()], lambda m, x: x * m.config[0].scale, lambda m: setattr(m.config[0], "scale", 3.0)),
    "function of the module": (Config, lambda m, x: m.act(x), setting("act", torch.tanh)),
    "list of the module": (Config, lambda m, x: x * m.sizes[0], lambda m: operator.setitem(m.sizes, 0, 3.0)),
    "of the class": (Config, lambda m, x: x * m.factor, setting("factor", 3.0)),
    "flag": (lambda: types.SimpleNamespace(on=True), lambda m, x: x if m.config.on else -x, setting("config.on", 1)),
    "zero": (lambda: types.SimpleNamespace(by=0.0), lambda m, x: x * m.config.by, setting("config.by", -0.0)),
    "none": (lambda: types.SimpleNamespace(by=2.0), lambda m, x: x * (m.config.by or 1), setting("config.by", None)),
    "taken away": (
        lambda: types.SimpleNamespace(scale=2.0),
        lambda m, x: x * getattr(m.config, "scale", 1.0),
        lambda m: delattr(m.config, "scale"),
    ),
}


@pytest.mark.parametrize("within", [False, True], ids=["module", "within"])
@pytest.mark.parametrize("case", HELD)
def test_what_modules_hold(case: str, within: bool) -> None:
    make, read, change = HELD[case]
    module = Held(make(), read)
    fn: Callable[..., Any] = nn.Sequential(nn.Linear(4, 4), module).requires_grad_(False) if within else lambda x: module(x)
    state = state_of(fn)
    change(module)
    assert changed(state, fn) is not None


def test_what_is_set_to_what_it_was_is_no_other() -> None:
    module = Held(Config(), lambda m, x: x * m.config.scale)
    state = state_of(module)
    for scale, same in ((2.0 + 1e-9, False), (float("2"), True), (3.0, False), (2.0, True)):
        module.config.scale = scale
        assert (changed(state, module) is None) is same
    module.config = Config()
    assert changed(state, module) is None
    module.config.scale = 3.0
    assert changed(state, module) == "config.scale", "the new one is looked at"


def test_what_no_code_names_may_change() -> None:
    module = Held(Config(), lambda m, x: x * m.config.scale)
    state = state_of(module)
    module.config.unread += 1
    module.seen = 3  # type: ignore[assignment]
    assert changed(state, module) is None


def test_settings_that_modules_share_are_looked_at_in_each() -> None:
    config = Config()
    held = [Held(config, lambda m, x: x * m.config.scale) for _ in range(3)]
    modules = nn.Sequential(*held)
    state = state_of(modules)
    held[2].config = Config(scale=5.0)
    assert changed(state, modules) == "config"
    held[2].config = config
    assert changed(state, modules) is None
    config.scale = 3.0
    assert changed(state, modules) == "config.scale"


@pytest.mark.parametrize("make", [Config, lambda: [2.0]], ids=["object", "list"])
def test_what_was_shared_and_is_merely_equal_now_is_another(make: Callable[[], Any]) -> None:
    shared = make()
    held = [Held(shared, lambda m, x: x * (m.config.scale if isinstance(m.config, Config) else m.config[0])) for _ in range(2)]
    modules = nn.Sequential(*held)
    state = state_of(modules)
    held[1].config = make()
    assert changed(state, modules) == "config", "nobody looks at the parts of the new one"
    held[1].config = shared
    assert changed(state, modules) is None


class Number(float):
    """A number of a class of its own, as readers of settings make them."""


def test_numbers_of_classes_of_their_own() -> None:
    settings = types.SimpleNamespace(scale=Number(2.0))
    held, within = Held(Number(2.0), lambda m, x: x * m.config), Held(settings, lambda m, x: x * m.config.scale)
    states = state_of(held), state_of(within)
    held.config, within.config.scale = Number(3.0), Number(3.0)
    assert [changed(state, module) for state, module in zip(states, (held, within), strict=True)] == ["config", "config.scale"]


class Recent(collections.OrderedDict[str, float]):
    """Keeps what was read last at its end."""

    def __getitem__(self, key: str) -> float:
        self.move_to_end(key)
        return super().__getitem__(key)


def test_a_dict_that_reading_turns_around() -> None:
    module = Held(Recent(a=1.0, b=2.0), lambda m, x: x * m.config["a"])
    state = state_of(module)
    module.config["a"] = 3.0
    assert changed(state, module) is not None


def test_long_chains_of_objects_are_looked_at_near_their_beginning() -> None:
    nodes = [types.SimpleNamespace(scale=2.0, following=None) for _ in range(3000)]
    for node, following in itertools.pairwise(nodes):
        node.following = following
    nodes[-1].following = nodes[0]
    module = Held(nodes[0], lambda m, x: x * m.config.following.scale)
    state = state_of(module)
    nodes[1].scale = 3.0
    assert changed(state, module) == "config.following.scale"


def test_one_object_by_two_names_is_seen_to_be_two() -> None:
    one = types.SimpleNamespace(scale=2.0)
    two = one

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * one.scale + two.scale  # type: ignore[no-any-return]

    state = state_of(fn)
    two = types.SimpleNamespace(scale=3.0)
    assert changed(state, fn) is not None


def of_classes(patch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    yield lambda: patch.setattr(Base, "factor", 3.0)
    yield lambda: patch.setattr(Base, "factors", [3.0, 2.0])
    yield lambda: Base.factors.append(1.0)
    yield lambda: patch.setattr(Held, "factor", 3.0, raising=False)
    yield lambda: patch.setattr(Base, "helped", lambda self, x: x * 3)
    yield lambda: patch.setattr(Config, "doubled", 7.0)
    yield lambda: patch.setattr(Config, "level", 7.0)


@pytest.mark.parametrize("number", range(7))
def test_what_classes_have(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "level", 1.0, raising=False)
    monkeypatch.setattr(Base, "factors", [1.0, 2.0])
    module = Held(Config(), lambda m, x: m.helped(x) * m.factor * m.factors[0] * m.config.doubled * m.config.level)
    state = state_of(module)
    [*of_classes(monkeypatch)][number]()
    assert changed(state, module) is not None


GLOBALS: list[tuple[str, Any]] = [("RATE", 3.0), ("RATES", [3.0]), ("TABLE", {"rate": 3.0}), ("ACTIVATION", torch.tanh)]


@pytest.mark.parametrize(("name", "value"), GLOBALS)
def test_globals_that_methods_of_modules_read(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(ByGlobals())
    state = state_of(model)
    monkeypatch.setitem(ByGlobals.forward.__globals__, name, value)
    assert changed(state, model) is not None


def test_a_list_of_globals_that_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [1.0, 2.0]
    monkeypatch.setitem(ByGlobals.forward.__globals__, "RATES", rates)
    model = ByGlobals()
    state = state_of(model)
    rates[0] = 5.0
    assert changed(state, model) is not None


def test_default_arguments_and_closures() -> None:
    act, by = torch.relu, [1.0]

    def inner(x: torch.Tensor, rate: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
        return act(x) * rate * by[0] + shift

    def fn(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    state = state_of(fn)
    inner.__defaults__ = (3.0,)
    assert changed(state, fn) is not None
    inner.__defaults__ = (2.0,)
    inner.__kwdefaults__ = {"shift": 2.0}
    assert changed(state, fn) is not None
    inner.__kwdefaults__["shift"] = 1.0
    assert changed(state, fn) is None
    act = torch.tanh
    assert changed(state, fn) is not None
    act = torch.relu
    by[0] = 2.0
    assert changed(state, fn) is not None


def test_a_property_that_is_computed_once() -> None:
    class Cached:
        def __init__(self) -> None:
            self.base = 2.0

        @functools.cached_property
        def scale(self) -> float:
            return self.base * 2

    module = Held(Cached(), lambda m, x: x * m.config.scale)
    module(X)
    state = state_of(module)
    module.config.scale = 7.0
    assert changed(state, module) is not None


def test_modules_in_objects_that_modules_hold() -> None:
    class Owner:
        def __init__(self) -> None:
            self.inner = nn.Linear(4, 4).requires_grad_(False)

    module = Held(Owner(), lambda m, x: m.config.inner(x))
    modules = ReachedModules(module)
    assert module.config.inner in modules.modules
    assert modules.are_there()
    module.config.inner = nn.Linear(4, 4)
    assert not modules.are_there()


class Private:
    """Has slots of its own, and one without a value."""

    __slots__ = ("__scale", "late")

    def __init__(self) -> None:
        self.__scale = 2.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.__scale

    def set(self, scale: float) -> None:
        self.__scale = scale


class Helper:
    """Has a method, and nothing else."""

    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Maskless(nn.Module):
    """Registers a buffer without having one."""

    mask: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.mask is None else x * self.mask


def _tried(module: Any, x: torch.Tensor) -> Any:
    try:
        return x * module.late
    except AttributeError:
        return x


def _tried_whatever_happens(module: Any, x: torch.Tensor) -> Any:
    try:
        return x * module.late
    except Exception:
        return x


class Cached:
    """Keeps what a property gives."""

    @functools.cached_property
    def rate(self) -> float:
        return 2.0


def _weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(4))


LATER: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None]]] = {
    "method": (lambda: Held(None, lambda m, x: m.helped(x)), setting("helped", torch.tanh)),
    "private slot": (lambda: Held(Private(), lambda m, x: m.config.scaled(x)), lambda m: m.config.set(3.0)),
    "method of an object": (lambda: Held(Helper(), lambda m, x: m.config.helped(x)), setting("config.helped", torch.tanh)),
    "with a default": (lambda: Held(None, lambda m, x: x * getattr(m, "late", 1.0)), setting("late", 3.0)),
    "asked for": (lambda: Held(None, lambda m, x: x * m.late if hasattr(m, "late") else x), setting("late", 3.0)),
    "tried": (lambda: Held(None, _tried), setting("late", 3.0)),
    "tried, whatever happens": (lambda: Held(None, _tried_whatever_happens), setting("late", 3.0)),
    "in the place of what a property kept": (lambda: Held(Cached(), lambda m, x: x * m.config.rate), setting("config.rate", 3.0)),
    "tensor with a default": (lambda: Held(None, lambda m, x: x * getattr(m, "late", 1.0)), setting("late", torch.ones(4))),
    "parameter with a default": (
        lambda: Held(None, lambda m, x: x * getattr(m, "late", 1.0)),
        lambda m: m.register_parameter("late", _weight()),
    ),
    "buffer with a default": (
        lambda: Held(None, lambda m, x: x * getattr(m, "late", 1.0)),
        lambda m: m.register_buffer("late", torch.ones(4)),
    ),
    "of settings": (lambda: Held(Config(), lambda m, x: x * getattr(m.config, "late", 1.0)), setting("config.late", 3.0)),
    "slot": (lambda: Held(Private(), lambda m, x: x * getattr(m.config, "late", 1.0)), setting("config.late", 3.0)),
    "bias": (lambda: nn.Linear(4, 4, bias=False), setting("bias", _weight())),
    "buffer": (Maskless, setting("mask", torch.ones(4))),
}


@pytest.mark.parametrize("case", LATER)
def test_what_code_reads_may_be_there_later(case: str) -> None:
    make, change = LATER[case]
    module = make()
    state = state_of(module)
    setattr(module, "unread", 1)  # noqa: B010  # modules declare tensors and modules alone
    assert changed(state, module) is None, "no code reads that"
    change(module)
    assert changed(state, module) is not None


def test_what_comes_later_in_the_place_of_another_attribute() -> None:
    module = Held(None, lambda m, x: x * getattr(m, "late", 1.0))
    setattr(module, "unread", 1)  # noqa: B010  # modules declare tensors and modules alone
    state = state_of(module)
    del module.unread
    setattr(module, "late", 3.0)  # noqa: B010
    assert changed(state, module) == "late"


def test_what_a_property_of_a_module_kept() -> None:
    class Keeping(nn.Module):
        @functools.cached_property
        def rate(self) -> float:
            return 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.rate

    module = Keeping()
    state = state_of(module)
    vars(module)["rate"] = 3.0
    assert changed(state, module) == "rate"


def test_what_a_class_gets_later() -> None:
    class Plain:
        pass

    module = Held(Plain(), lambda m, x: x * getattr(m.config, "late", 1.0))
    state = state_of(module)
    Plain.late = 3.0  # type: ignore[attr-defined]  # it has none yet
    assert changed(state, module) == "late"


def test_what_the_function_adds_itself_is_no_change() -> None:
    def keeps(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.late = getattr(module, "late", 0) + 1
        return x * 2

    module = Held(None, keeps)
    state = state_of(module)
    module(X)
    assert changed(state, module) is None


def test_what_others_set_while_a_call_looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Held(Config(), lambda m, x: x * m.config.scale)
    state = state_of(module)
    look = state._look

    def late() -> Any:
        module.config.scale = 3.0
        return look()

    monkeypatch.setattr(state, "_look", late)
    module.config.scale = float("2")  # an equal object, for which a call looks anew
    changed(state, module)
    assert module.config.scale == 3.0, "it has looked"
    assert changed(state, module) is not None


def test_settings_are_looked_at_once_however_many_modules_have_them() -> None:
    config = types.SimpleNamespace(**{f"rate{number}": 1.0 for number in range(40)}, scale=2.0)
    read = lambda m, x: x * sum(vars(m.config).values())  # noqa: E731
    few, many = (nn.Sequential(*(Held(config, read) for _ in range(n))) for n in (2, 40))
    asked = [0 if (unchanged := state_of(model)._unchanged) is None else len(unchanged) for model in (few, many)]
    assert 0 < asked[1] - asked[0] <= 38 * 6, "settings have more names than that"


def test_attributes_are_asked_without_code_of_their_class() -> None:
    class Counted:
        asked = 0

        def __init__(self) -> None:
            self.scale = 2.0

        def __getattribute__(self, name: str) -> Any:
            Counted.asked += name == "scale"
            return super().__getattribute__(name)

    module = Held(Counted(), lambda m, x: x * m.config.scale)
    state, modules = state_of(module), ReachedModules(module).modules
    before = Counted.asked
    assert state.changed(modules) is None
    assert Counted.asked == before
    module.config.scale = 3.0
    assert state.changed(modules) is not None


def test_what_cannot_be_compared_is_another() -> None:
    class Unlike(tuple[int, ...]):
        def __eq__(self, other: object) -> bool:
            raise AttributeError("numbers")

        __hash__ = tuple.__hash__

    module = Held(types.SimpleNamespace(scale=Unlike((1, 2))), lambda m, x: x * m.config.scale[0])
    state = state_of(module)
    assert changed(state, module) is None
    module.config.scale = Unlike((2, 2))
    assert changed(state, module) is not None


class WithScripted(nn.Module):
    """A module of which a part is compiled by TorchScript, and whose code asks for what may come later."""

    gain: float

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.trace(nn.Linear(4, 4), X)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> Any:
        return self.part(x) * getattr(self, "gain", 1.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_modules_that_torchscript_compiled_are_looked_at() -> None:
    model = WithScripted()
    reached = ReachedModules(model)
    state = PythonState(model, reached.modules)
    assert state.changed(reached.modules) is None
    model.gain = 2.0
    assert state.changed(reached.modules) == "gain"
