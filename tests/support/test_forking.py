"""A process that is forked while another thread holds a lock does not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOCKS = [
    "mugraph.support.forking.lock_of_process()",
    "mugraph.verifier.agreements.AGREEMENTS._lock",
    "mugraph.integrations.own_arguments._choosing",
    "mugraph.host.objects._ONE_AT_A_TIME",
]
PROGRAM = """
import importlib, os, threading
importlib.import_module({module!r})
import mugraph
lock, held, done = {lock}, threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
if not (child := os.fork()):
    os._exit(lock.acquire(blocking=False) and not lock.acquire(blocking=False))
_, status = os.waitpid(child, 0)
assert lock.locked()
done.set()
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(status) != 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("lock", LOCKS)
def test_nobody_holds_a_lock_of_a_forked_process(lock: str) -> None:
    program = PROGRAM.format(lock=lock, module=lock.rpartition(".")[0].removesuffix(".AGREEMENTS"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
