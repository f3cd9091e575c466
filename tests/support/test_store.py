"""The store: what is put comes back unchanged or not at all, whatever happens to files, threads and processes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mugraph.errors import InvalidInput, StorageError
from mugraph.support.store import Entry, Mode, Store, cache_directory


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def database_of(store: Store) -> Path:
    (file,) = store.directory.glob("store-*.sqlite")
    return file


def keys(store: Store) -> set[str]:
    return {entry.key for entry in store.entries()}


def test_what_is_put_comes_back_and_replaces_what_was_there(store: Store) -> None:
    assert store.get("result", "a") is None
    store.put("result", "a", {"text": "µ", "numbers": [1, 2.5, None]})
    store.put("structure", "a", {"other": True})
    assert store.get("result", "a") == {"text": "µ", "numbers": [1, 2.5, None]}
    store.put("result", "a", {"new": 1})
    assert store.get("result", "a") == {"new": 1}
    assert store.get("structure", "a") == {"other": True}
    assert Store(store.directory).get("result", "a") == {"new": 1}


def test_asking_an_empty_store_leaves_no_files(store: Store) -> None:
    assert store.get("result", "a") is None
    assert store.entries() == []
    assert store.remove() == 0
    assert not store.directory.exists()


def test_modes_say_what_is_read_and_written(store: Store) -> None:
    store.put("result", "a", {"first": 1})
    for mode, seen, after in (
        (Mode.OFF, None, {"first": 1}),
        (Mode.READ_ONLY, {"first": 1}, {"first": 1}),
        (Mode.FORCE, None, {"second": 2}),
    ):
        other = Store(store.directory, mode)
        assert other.get("result", "a") == seen
        other.put("result", "a", {"second": 2})
        assert store.get("result", "a") == after


def test_the_environment_chooses_directory_and_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "chosen"))
    monkeypatch.setenv("MUGRAPH_CACHE", "read-only")
    assert cache_directory() == tmp_path / "chosen"
    assert (Store.of(None).directory, Store.of(None).mode) == (tmp_path / "chosen", Mode.READ_ONLY)
    assert Store.of("force").mode is Mode.FORCE
    monkeypatch.delenv("MUGRAPH_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "mugraph"
    own = Store(tmp_path)
    assert Store.of(own) is own
    with pytest.raises(InvalidInput, match=r"unknown cache mode 'often'; use one of on, off, read-only, force"):
        Store.of("often")


def test_documents_can_be_listed_and_removed(store: Store) -> None:
    for kind, key in (("result", "a"), ("result", "b"), ("structure", "a")):
        store.put(kind, key, {})
    assert {(entry.kind, entry.key, entry.bytes) for entry in store.entries()} == {
        ("result", "a", 2), ("result", "b", 2), ("structure", "a", 2),
    }  # fmt: skip
    assert store.remove("result", "b") == 1
    assert store.remove("structure") == 1
    assert [entry.key for entry in store.entries()] == ["a"]
    assert store.remove() == 1
    assert store.entries() == []


def test_the_longest_unused_leave_when_the_size_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "time", lambda: now)
    store = Store(tmp_path, max_bytes=1000)
    for number in range(3):
        now = 10_000.0 * number
        store.put("result", str(number), {"text": "x" * 300})
    now = 100_000.0
    assert store.get("result", "0") is not None  # used again: "1" is the longest unused now
    store.put("result", "3", {"text": "x" * 300})
    assert keys(store) == {"0", "2", "3"}


def test_a_damaged_document_is_reported_and_dropped(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.put("result", "a", {"n": 1})
    store.put("result", "b", {"n": 2})
    with sqlite3.connect(database_of(store)) as database:
        database.execute("UPDATE entries SET value = '{\"n\":3}' WHERE key = 'a'")
    with caplog.at_level(logging.WARNING):
        assert Store(store.directory, Mode.READ_ONLY).get("result", "a") is None
        assert keys(store) == {"a", "b"}, "read-only stores change nothing"
        assert store.get("result", "a") is None
    assert "result entry a is damaged" in caplog.text
    assert keys(store) == {"b"}


def test_a_document_moved_to_another_key_is_not_believed(store: Store) -> None:
    store.put("result", "a", {"n": 1})
    with sqlite3.connect(database_of(store)) as database:
        database.execute("UPDATE entries SET key = 'b'")
    assert store.get("result", "b") is None


@pytest.mark.parametrize("damage", [b"this is no database, and long enough to be one" * 100, None])
def test_a_damaged_file_is_reported_and_replaced(store: Store, caplog: pytest.LogCaptureFixture, damage: bytes | None) -> None:
    for number in range(50):
        store.put("result", str(number), {"text": "x" * 1000})
    file = database_of(store)
    content = file.read_bytes()
    file.write_bytes(damage or content[:4096] + os.urandom(len(content) - 4096))
    with caplog.at_level(logging.WARNING):
        assert store.get("result", "7") is None
    assert "is damaged; a new one replaces it" in caplog.text
    assert f"cannot read the cache {file} (" in caplog.text
    store.put("result", "7", {"again": True})
    assert store.get("result", "7") == {"again": True}
    assert database_of(store) != file


FORMS = {
    "another table": "DROP TABLE entries; CREATE TABLE entries (name TEXT)",
    "a column more": "ALTER TABLE entries ADD COLUMN more TEXT",
    "columns of other types": "DROP TABLE entries; CREATE TABLE entries (kind, key, value, digest, bytes, used)",
    "a trigger": "CREATE TRIGGER t AFTER UPDATE ON entries BEGIN DELETE FROM entries; END",
    "a view in the table's place": "DROP TABLE entries; CREATE VIEW entries AS SELECT 1 AS kind",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_database_of_another_form_is_reported_and_replaced(store: Store, form: str, caplog: pytest.LogCaptureFixture) -> None:
    store.put("result", "a", {"n": 1})
    file = database_of(store)
    with sqlite3.connect(file) as database:
        database.executescript(FORMS[form])
    with caplog.at_level(logging.WARNING):
        assert store.get("result", "a") is None
    assert f"the cache {file} is damaged; a new one replaces it" in caplog.text
    store.put("result", "a", {"n": 2})
    assert store.get("result", "a") == {"n": 2}


@pytest.mark.parametrize("column", ["value", "digest", "used", "bytes"])
@pytest.mark.parametrize("content", [b"\xff\x00", None, "text", 7])
def test_columns_that_hold_anything_are_damage(store: Store, column: str, content: object) -> None:
    store.put("result", "a", {"n": 1})
    with sqlite3.connect(database_of(store)) as database, contextlib.suppress(sqlite3.IntegrityError):
        database.execute(f"UPDATE entries SET {column} = ?", (content,))
    assert store.get("result", "a") in (None, {"n": 1})
    store.export_to(store.directory / "export")
    store.put("result", "a", {"n": 2})
    assert store.get("result", "a") == {"n": 2}


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 5000])
def test_a_database_that_was_cut_off_is_empty_or_replaced(store: Store, size: int) -> None:
    for number in range(50):
        store.put("result", str(number), {"text": "x" * 1000})
    os.truncate(database_of(store), size)
    assert store.get("result", "7") is None
    store.put("result", "7", {"again": True})
    assert store.get("result", "7") == {"again": True}


def test_a_directory_that_cannot_be_made_is_reported_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING):
        store.put("result", "a", {})
    assert "cannot write the cache" in caplog.text
    assert store.get("result", "a") is None


def test_threads_share_a_store(store: Store) -> None:
    def work(thread: int) -> bool:
        for number in range(20):
            store.put("result", f"{thread}-{number}", {"thread": thread, "number": number})
        return all(store.get("result", f"{thread}-{n}") == {"thread": thread, "number": n} for n in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(store.entries()) == 160


_WRITER = """
import sys
from pathlib import Path
from mugraph.support.store import Store
store = Store(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    store.put("result", f"{sys.argv[2]}-{number}", {"text": sys.argv[2] * 50_000, "number": number})
    print(number, flush=True)
"""


def writer(store: Store, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(store.directory), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_start_together_share_a_store(store: Store) -> None:
    processes = [writer(store, name, 5) for name in "abcd"]
    complaints = [process.communicate()[1] for process in processes]
    assert complaints == [""] * 4
    assert len(store.entries()) == 20


def test_a_process_killed_while_writing_leaves_only_whole_documents(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        process = writer(store, name, 10_000)
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with caplog.at_level(logging.WARNING):
        for entry in store.entries():
            document = store.get(entry.kind, entry.key)
            assert document == {"text": entry.key[0] * 50_000, "number": int(entry.key[2:])}
        store.put("result", "after", {"n": 1})
    assert store.get("result", "after") == {"n": 1}
    assert len(store.entries()) >= 16, "what was acknowledged is there"
    assert not caplog.records


def test_an_export_can_be_imported_elsewhere(store: Store, tmp_path: Path) -> None:
    store.put("result", "a", {"n": 1})
    store.put("structure", "b", {"text": "line\nbreak"})
    assert store.export_to(tmp_path / "cache.jsonl") == 2
    other = Store(tmp_path / "other")
    assert other.import_from(tmp_path / "cache.jsonl") == 2
    assert other.get("structure", "b") == {"text": "line\nbreak"}
    assert Store(tmp_path / "empty").export_to(tmp_path / "empty.jsonl") == 0
    assert other.import_from(tmp_path / "empty.jsonl") == 0


def test_an_import_of_changed_lines_imports_nothing(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        store.put("result", str(number), {"n": number})
    file = tmp_path / "cache.jsonl"
    store.export_to(file)
    head, *lines = file.read_text().splitlines()
    changed = json.dumps({**json.loads(lines[1]), "value": '{"n":7}'})
    other = Store(tmp_path / "other")
    for text in ("\n".join([head, lines[0], changed]), "\n".join([head, lines[0], lines[1][:-5]]), f"{head}\n[]"):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=r"line [23] of .* was changed or cut off"):
            other.import_from(file)
    for content in (b"something else", b"\xff\xfe\x00"):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match="is no exported cache"):
            other.import_from(file)
    with pytest.raises(StorageError, match="cannot import the cache"):
        other.import_from(tmp_path / "absent")
    assert other.entries() == []


def test_entries_are_ordered_by_last_use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for now, key in enumerate("abc"):
        monkeypatch.setattr(time, "time", lambda now=now: float(now))
        store.put("result", key, {})
    assert store.entries() == [Entry("result", "c", 2, 2.0), Entry("result", "b", 2, 1.0), Entry("result", "a", 2, 0.0)]
