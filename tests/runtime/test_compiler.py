"""Finding a compiler, the object cache, and what happens when either fails."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest

from mugraph.errors import CompilationFailed, TargetUnavailable
from mugraph.runtime import compiler
from mugraph.runtime.compiler import compile_shared, find_compiler, load_shared

SOURCE = "int answer(void) { return 42; }\n"


def test_the_object_is_compiled_once(tmp_path: Path) -> None:
    first = compile_shared(SOURCE, tmp_path)
    written = first.stat().st_mtime_ns
    assert compile_shared(SOURCE, tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert ctypes.CDLL(str(first)).answer() == 42


def test_nothing_but_the_object_is_left_in_the_cache(tmp_path: Path) -> None:
    path = compile_shared(SOURCE, tmp_path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_another_source_has_another_object(tmp_path: Path) -> None:
    assert compile_shared(SOURCE, tmp_path) != compile_shared(SOURCE + "\n", tmp_path)


def test_a_cache_that_cannot_be_written_is_replaced_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        path = compile_shared(SOURCE, blocked)
        assert compile_shared(SOURCE, blocked) == path
        assert compile_shared(f"static {SOURCE}", blocked).parent == path.parent
    assert ctypes.CDLL(str(path)).answer() == 42
    assert caplog.text.count("cannot write the cache") == 1


@pytest.mark.parametrize("content", [b"", b"not an object"])
def test_a_damaged_object_is_compiled_again(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    compile_shared(SOURCE, tmp_path).write_bytes(content)
    assert load_shared(SOURCE, tmp_path).answer() == 42
    assert "is damaged" in caplog.text


def test_a_rejected_source_is_kept_and_named(tmp_path: Path) -> None:
    with pytest.raises(CompilationFailed, match="please report") as caught:
        compile_shared("int broken(", tmp_path)
    kept = Path(str(caught.value).rsplit(" ", 1)[1])
    assert kept.read_text() == "int broken("


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_commands", list)
    with pytest.raises(TargetUnavailable, match="pip install ziglang"):
        find_compiler.__wrapped__()
