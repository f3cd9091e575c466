"""Directories for the length of a piece of work: gone with it, or with the next process where theirs was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mugraph.support.scratch import abandoned, remove_scratch_of, scratch_directory

KILLED = """
import os, signal, sys
from pathlib import Path
from mugraph.support.scratch import scratch_directory
held = scratch_directory(".work-", Path(sys.argv[1]))
Path(held.name, "part").write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch_directory(".work-", tmp_path) as name:
        assert Path(name).stat().st_mode & 0o777 == 0o700
        assert os.listdir(tmp_path) == [Path(name).name]
    assert os.listdir(tmp_path) == []


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = abandoned(".work-", tmp_path)
    assert (left / "part").read_text() == "half"
    kept = [".work-elsewhere-1-x", f".work-{left.name.split('-')[1]}-{os.getpid()}-x", ".work-of mine"]
    for name in kept:
        (tmp_path / name).mkdir()
    with scratch_directory(".work-", tmp_path) as name:
        assert sorted(os.listdir(tmp_path)) == sorted([*kept, Path(name).name])


def test_who_kills_a_process_removes_what_it_left_and_nothing_else(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    killed.wait()
    (left,) = abandoned(".work-", tmp_path)
    kept = [left.name.replace(str(killed.pid), other) for other in (str(os.getpid()), f"{killed.pid}7", "1")]
    for name in [*kept, "of mine"]:
        (tmp_path / name).mkdir()
    (tmp_path / f"{left.name}-link").symlink_to(tmp_path / "of mine")
    remove_scratch_of(killed.pid, (tmp_path, tmp_path / "nowhere"))
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "of mine", f"{left.name}-link"])
