"""Generated Python files as modules: what runs is the very text whose hash was checked, not what a file says later."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.abc import InspectLoader
from types import CodeType, ModuleType

from mugraph.errors import TargetUnavailable


def triton_version() -> str:
    """The version of Triton; raises TargetUnavailable without it."""
    try:
        import triton
    except ImportError as error:
        raise TargetUnavailable(
            f"target triton compiles with triton, which does not import ({error}); run `pip install 'mugraph[triton]'`"
        ) from None
    version: str = triton.__version__
    return version


def module_of(source: str) -> ModuleType:
    """The module of a generated file. The same text gives the same module; nothing is read from or written to a disk.

    Triton compiles the text of a function that Python's `inspect` finds, which asks the module's loader for it.
    """
    name = f"mugraph_triton_{hashlib.sha256(source.encode()).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_loader(name, _Loader(source), origin=f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.__file__ = spec.origin
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


class _Loader(InspectLoader):
    """A loader of one module from its text."""

    def __init__(self, source: str) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        """The text, for Python's `inspect` and `linecache`."""
        return self.source

    def get_code(self, fullname: str) -> CodeType:
        """The compiled text, under the name of the file that `inspect` looks for."""
        return self.source_to_code(self.source, f"{fullname}.py")
