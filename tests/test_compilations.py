"""What the suite keeps of compilers: one compilation of a text, and another wherever something else could come of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compilations import Compilations
from mugraph.errors import CompilationFailed
from mugraph.targets.cuda import nvrtc
from mugraph.targets.cuda.emulator import toolchain
from mugraph.targets.cuda.nvrtc import Cubin


def test_what_was_made_is_read_back_by_another_process(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    assert Compilations(tmp_path).kept("object", ("a", "b"), lambda: content) == content
    assert Compilations(tmp_path).kept("object", ("a", "b"), lambda: pytest.fail("made again")) == content
    for kind, parts in (("object", ("a", "c")), ("object", ("a",)), ("cubin", ("a", "b"))):
        assert Compilations(tmp_path).kept(kind, parts, lambda: b"another") == b"another"


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
def test_kernels_are_compiled_for_the_emulator_once_a_text_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def compiled(text: str, folder: Path) -> bytes:
        asked.append(text)
        if "nonsense" in text:
            raise CompilationFailed("nonsense")
        return text.encode()

    monkeypatch.setattr(toolchain, "_compiled", compiled)
    kept = Compilations(tmp_path).objects()
    assert [kept(text, tmp_path) for text in ("one", "two", "one")] == [b"one", b"two", b"one"]
    assert asked == ["one", "two"]
    for _ in range(2):
        with pytest.raises(CompilationFailed):
            kept("nonsense", tmp_path)
    assert asked == ["one", "two", "nonsense", "nonsense"]
    monkeypatch.setattr(toolchain, "_KERNEL_FLAGS", (*toolchain._KERNEL_FLAGS, "-O2"))
    kept("one", tmp_path)
    assert asked[4:] == ["one"]


def test_machine_code_is_kept_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="compiling CUDA needs cuda-core")
    asked = list[str]()

    def compiled(text: str, architecture: str) -> Cubin:
        asked.append(architecture)
        return Cubin(b"\x7fELF\0code", architecture, "Used 3 registers\0\0")

    monkeypatch.setattr(nvrtc, "_compile", compiled)
    first, again = Compilations(tmp_path).cubins(), Compilations(tmp_path).cubins()
    assert first("text", "sm_80") == again("text", "sm_80") == Cubin(b"\x7fELF\0code", "sm_80", "Used 3 registers\0\0")
    assert asked == ["sm_80"]
    again("text", "sm_90")
    assert asked == ["sm_80", "sm_90"]
