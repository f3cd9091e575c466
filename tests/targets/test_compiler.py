"""Finding a compiler, the object cache, and what happens when either fails."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from mugraph.errors import CompilationFailed, TargetUnavailable
from mugraph.host.objects import kept_object
from mugraph.ir import DType
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Strips, Tile
from mugraph.targets.cpu import Vectors, compiler, print_program
from mugraph.targets.cpu.compiler import find_compiler, load_shared

SOURCE = "int answer(void) { return 42; }\n"
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "something else": lambda whole: b"not an object",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "without its hash": lambda whole: whole[:-32],
    "one bit": lambda whole: whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
    "zeros at the end": lambda whole: whole[:-4096] + bytes(4096),
}


def the_object(cache: Path) -> Path:
    (path,) = (cache / "objects").glob("*.so")
    return path


def test_the_object_is_compiled_once(tmp_path: Path) -> None:
    assert load_shared(SOURCE, tmp_path).answer() == 42
    written = the_object(tmp_path).stat().st_mtime_ns
    assert load_shared(SOURCE, tmp_path).answer() == 42
    assert the_object(tmp_path).stat().st_mtime_ns == written


def test_nothing_but_the_object_is_left_in_the_cache_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    usual = os.umask(0)
    try:
        load_shared(SOURCE, tmp_path / "new" / "cache")
    finally:
        os.umask(usual)
    path = the_object(tmp_path / "new" / "cache")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert path.stat().st_mode & 0o777 == 0o600
    assert {folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)} == {0o700}


def test_another_source_has_another_object(tmp_path: Path) -> None:
    load_shared(SOURCE, tmp_path)
    load_shared(SOURCE + "\n", tmp_path)
    assert len(list((tmp_path / "objects").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_replaced_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        for source in (SOURCE, SOURCE, f"static {SOURCE}int other(void) {{ return answer(); }}"):
            library = load_shared(source, blocked)
    assert library.other() == 42
    assert caplog.text.count("cannot use the cache") == 1


@pytest.mark.parametrize("damage", DAMAGES, ids=DAMAGES.keys())
def test_a_damaged_object_is_compiled_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """In another process: a truncated object that is mapped ends it with a bus error, which nothing catches."""
    load_shared(SOURCE, tmp_path)
    path = the_object(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    script = "import sys; from pathlib import Path; from mugraph.targets.cpu.compiler import load_shared\n"
    script += f"assert load_shared({SOURCE!r}, Path(sys.argv[1])).answer() == 42"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("is damaged") == 1
    assert len(path.read_bytes()) == len(whole)


def test_an_object_under_the_name_of_another_is_not_loaded(tmp_path: Path) -> None:
    load_shared(SOURCE, tmp_path)
    path = the_object(tmp_path)
    other = "int answer(void) { return 43; }\n"
    wrong = path.with_name(f"{find_compiler().key(other)}.so")
    path.rename(wrong)
    assert load_shared(other, tmp_path).answer() == 43


def test_what_happens_to_the_file_of_a_loaded_object_does_not_matter(tmp_path: Path) -> None:
    library = load_shared(SOURCE, tmp_path)
    os.truncate(the_object(tmp_path), 0)
    assert library.answer() == 42


def test_an_object_with_its_hash_that_the_loader_refuses_is_compiled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "objects" / f"{find_compiler().key(SOURCE)}.so"
    kept_object(path, lambda file: none(file.write_bytes(b"no object")))
    assert load_shared(SOURCE, tmp_path).answer() == 42
    assert "cannot be loaded" in caplog.text


def none(value: object) -> None:
    """For functions that return something nobody asks for."""


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_nothing_is_loaded_from_a_directory_that_others_can_write_to(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    load_shared(SOURCE, tmp_path)
    (tmp_path / "objects").chmod(mode)
    with mock.patch.object(compiler, "_compile", side_effect=compiler._compile) as compiled:
        assert load_shared(SOURCE, tmp_path).answer() == 42
    assert compiled.call_count == 1
    assert f"run `chmod go-w {tmp_path / 'objects'}`" in caplog.text


def test_a_rejected_source_is_kept_and_named(tmp_path: Path) -> None:
    with pytest.raises(CompilationFailed, match="please report") as caught:
        load_shared("int broken(", tmp_path)
    kept = Path(str(caught.value).rsplit(" ", 1)[1])
    assert kept.read_text() == "int broken("


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_commands", list)
    with pytest.raises(TargetUnavailable, match="pip install ziglang"):
        find_compiler.__wrapped__()


def test_registers_are_arrays_where_the_system_does_not_let_us_use_the_matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (True, False):
        monkeypatch.setattr(compiler, "may_use_tiles", lambda allowed=allowed: allowed)
        with_unit, without = (compiler.Compiler(("cc",), macros).flags for macros in ("#define __AMX_BF16__ 1", ""))
        assert ("-DEMULATED_TILES" in with_unit) != allowed
        assert "-DEMULATED_TILES" not in without


def test_clang_is_not_given_the_flags_of_gcc() -> None:
    gcc, clang = (compiler.Compiler(("cc",), macros).flags for macros in ("#define __GNUC__ 12", "#define __clang__ 1"))
    assert set(gcc) - set(clang) == {"-fira-loop-pressure"}


def test_the_passes_that_kernels_need_are_those_of_gcc_on_the_machines_where_they_were_timed() -> None:
    hosts = (
        "#define __GNUC__ 12\n#define __x86_64__ 1",
        "#define __GNUC__ 12\n#define __aarch64__ 1",
        "#define __clang__ 1\n#define __x86_64__ 1",
    )
    passes, *others = (compiler.Compiler(("gcc",), macros).flags for macros in hosts)
    assert "-fpeel-loops" in passes
    assert "-O3" not in passes
    assert all("-O3" in flags and "-fpeel-loops" not in flags for flags in others)


def assembly_of(product: Matmul, tmp_path: Path, vectors: Vectors | None = None, host: str = "native") -> list[str]:
    """Lines of assembly of a kernel that is one product of packed weights, all of it of the product's type."""
    source, assembly = tmp_path / "kernels.c", tmp_path / "kernels.s"
    tiles = (product.target, product.left, product.right)
    buffers = tuple(Buffer(tile.buffer, Memory.DEVICE, product.dtype, math.prod(tile.shape)) for tile in tiles)
    kernel = Kernel("product", (1,), 1, buffers, ("in0", "in1"), ("out0",), (), (), (product,))
    source.write_text(print_program([kernel], vectors or find_compiler().vectors), encoding="utf-8")
    command = [*find_compiler().command, *find_compiler().flags, f"-march={host}", "-S", str(source), "-o", str(assembly)]
    subprocess.run(command, check=True)
    return assembly.read_text(encoding="utf-8").splitlines()


def packed_product(rows: int, depth: int, columns: int, strips: Strips, dtype: DType) -> Matmul:
    shapes = {"out0": (rows, columns), "in0": (rows, depth), "in1": (depth, columns)}
    target, left, right = (Tile(name, shape, (shape[1], 1)) for name, shape in shapes.items())
    return Matmul(target, left, right, dtype, strips=strips)


@pytest.mark.skipif(
    "__clang__" in find_compiler().macros or not find_compiler().vectors.bf16_pairs, reason="registers of another unit"
)
def test_sums_of_register_tiles_do_not_go_through_memory(tmp_path: Path) -> None:
    """Constants that round them after the loop are none that it needs: GCC had them take the places of two of 24 sums."""
    lines = assembly_of(packed_product(8, 2048, 2048, Strips(2048, 48, pairs=True), DType.BF16), tmp_path)
    products = [number for number, line in enumerate(lines) if "vdpbf16ps" in line]
    assert len(products) >= 24
    assert not [line for line in lines[products[0] : products[23]] if "(%rsp)" in line]


@pytest.mark.skipif(
    "__clang__" in find_compiler().macros or find_compiler().vectors.lanes != 16, reason="registers of another unit"
)
@pytest.mark.parametrize(("rows", "panel"), [(4, 768), (128, 64)])
def test_vectors_that_rows_share_are_read_once(tmp_path: Path, rows: int, panel: int) -> None:
    """GCC had each of four rows read six vectors of the right factor from memory anew, which took twice as long."""
    lines = assembly_of(packed_product(rows, 768, 96, Strips(panel, 96), DType.FP32), tmp_path)
    products = [number for number, line in enumerate(lines) if "vfmadd" in line and "%zmm" in line]
    assert len(products) >= 24
    step = [line for line in lines[products[0] : products[23] + 1] if "(" in line and "%zmm" in line]
    assert len([line for line in step if "{1to16}" not in line and "broadcast" not in line]) <= 6


@pytest.mark.skipif(
    "__clang__" in find_compiler().macros or "__x86_64__" not in find_compiler().macros, reason="registers of another unit"
)
@pytest.mark.parametrize("panel", [64, 256])
def test_what_rows_share_does_not_push_sums_out_of_a_full_unit(tmp_path: Path, panel: int) -> None:
    """Twelve sums, three vectors and a number are all of 16 registers: with the vectors held there it took twice as long."""
    avx2 = Vectors(lanes=8, registers=16)
    lines = assembly_of(packed_product(128, 768, 384, Strips(panel, 24), DType.FP32), tmp_path, avx2, "haswell")
    products = [number for number, line in enumerate(lines) if "vfmadd" in line and "%ymm" in line]
    assert len(products) >= 12
    assert not [line for line in lines[products[0] : products[11]] if "(%rsp)" in line]
