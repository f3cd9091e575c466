"""The errors a user can act on: one type per cause, each naming the thing at fault and the remedy."""

from __future__ import annotations


class MugraphError(Exception):
    """Base of every error mugraph raises on purpose; its text is one line that a user can act on."""


class MugraphWarning(UserWarning):
    """Base of every warning mugraph gives: the call is answered, and not in the way that the user may expect."""


class GradientsDropped(MugraphWarning):
    """Kernels were called while PyTorch records gradients, with a tensor that requires one: what they return has none."""


class LeftToPyTorch(MugraphWarning):
    """A function that `mugraph.optimize` was asked for runs as PyTorch runs it; the text says why."""


class InvalidInput(MugraphError):
    """An argument, file or option that cannot be used as given."""


class IndexOutOfRange(InvalidInput, IndexError):
    """An integer that a lookup was given names no place in its table; the text says which integer and what is allowed."""


class SharedMemory(InvalidInput):
    """Tensors of a call share memory, and the function changes one of them; it was recorded with two that do not."""


class UnsupportedOperator(MugraphError):
    """The traced program uses an operator, dtype or pattern outside the operator table."""


class NotAProgram(UnsupportedOperator):
    """A function that PyTorch could trace, which changes none of its inputs, and of which only parts are programs."""


class SeveralPrograms(InvalidInput, AttributeError):
    """Something was asked of a result of several programs that only results of one program have."""


class ShapeMismatch(MugraphError):
    """Operand shapes do not match the specification of an operator (Definition 2.1, clause 1)."""


class InvalidGraph(MugraphError):
    """A muGraph breaks a clause of Definition 2.1; the text names the clause, the level and the node."""


class ExceedsMemory(InvalidGraph):
    """A muGraph breaks clause 2 of Definition 2.1: its tensors or threads do not fit the device."""


class NotEquivalent(MugraphError):
    """A muGraph that was given to be run does not compute the program, or is not shown to; the text says what is known."""


class UndefinedInField(MugraphError):
    """A finite-field evaluation met a value without meaning there (0 as denominator, a second exponentiation)."""


class TargetUnavailable(MugraphError):
    """The requested target is unknown, or what it needs (a compiler, a device) is not on this machine."""


class CompilationFailed(MugraphError):
    """The system compiler rejected a generated kernel: always a defect of mugraph, so the source is kept."""


class LaunchFailed(MugraphError):
    """A GPU's driver could not load or launch a kernel; the text names the kernel, the device and what the driver says."""


class BudgetExceeded(MugraphError):
    """The budget ran out before any result existed."""


class StorageError(MugraphError):
    """A file or the cache could not be read or written."""


class UntrustedSources(MugraphError):
    """Saved sources are not known to be those of the saved muGraph, and the user did not say to trust them."""
