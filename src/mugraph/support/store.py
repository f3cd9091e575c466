"""What outlives a process: JSON documents by kind and key, in one SQLite file of the user's cache directory.

Everything in it can be computed again, so a store never fails its caller: what cannot be read is reported in the log and
counts as absent, what cannot be written is reported and forgotten. Many threads and processes may use one store at once.
A document is kept with a hash of itself; one that does not match is dropped, and a file that is no database, or one of another
form, is left behind for a new one. The directory is the user's own: one that others can write to is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from mugraph.errors import InvalidInput, StorageError
from mugraph.support.private_directories import PRIVATE_FILE, NotPrivate, check_private, make_private

FORMAT = 1
"""Of the database and of exported files; stores of another format are other files."""
_DEFAULT_BYTES = 2**29
_BUSY_SECONDS = 30.0
_TOUCHED_SECONDS = 3600.0
"""How old the time of last use may get before a read renews it: reading should rarely write."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, digest TEXT NOT NULL, bytes INTEGER NOT NULL, used REAL NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""
_ABOUT = "coalesce(CASE WHEN json_valid(value) THEN json_extract(value, '$.about') END, '')"
_COLUMNS = [("kind", "TEXT"), ("key", "TEXT"), ("value", "TEXT"), ("digest", "TEXT"), ("bytes", "INTEGER"), ("used", "REAL")]
_SAID: set[tuple[str, str, str]] = set()
"""What this process could not do and has said: once is enough."""
_log = logging.getLogger(__name__)

Document = Mapping[str, Any]


class Mode(StrEnum):
    """What a store may do: both, nothing, only read, or compute everything anew and write it."""

    ON = "on"
    OFF = "off"
    READ_ONLY = "read-only"
    FORCE = "force"

    @classmethod
    def parse(cls, text: str) -> Mode:
        """The mode called `text`; raises InvalidInput with the known names otherwise."""
        try:
            return cls(text)
        except ValueError:
            raise InvalidInput(f"unknown cache mode {text!r}; use one of {', '.join(cls)}") from None


@dataclass(frozen=True, slots=True)
class Entry:
    """One document of a store: its size in bytes, when it was last used, in seconds since 1970, and what it says of itself.

    `about` is the document's field of that name, a line for people; empty where it has none.
    """

    kind: str
    key: str
    bytes: int
    used: float
    about: str = ""


def cache_directory() -> Path:
    """The user's cache directory: $MUGRAPH_CACHE_DIR, else `mugraph` where the platform keeps caches."""
    chosen = os.environ.get("MUGRAPH_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "mugraph" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mugraph"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mugraph"


class Store:
    """Documents by kind and key; `get` and `put` never raise for what happens to files.

    `max_bytes` bounds the documents together: the longest unused leave first. A store holds no open file, so it may be
    shared by threads and survives a fork.
    """

    def __init__(self, directory: Path | None = None, mode: Mode | str = Mode.ON, max_bytes: int = _DEFAULT_BYTES) -> None:
        self.directory = cache_directory() if directory is None else directory
        self.mode = Mode.parse(mode)
        self.max_bytes = max_bytes

    @classmethod
    def of(cls, choice: Store | Mode | str | None) -> Store:
        """The store a user asks for: one of theirs, the default one in some mode, or by None as $MUGRAPH_CACHE says."""
        if isinstance(choice, Store):
            return choice
        return cls(mode=os.environ.get("MUGRAPH_CACHE") or Mode.ON if choice is None else choice)

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """The document put under `kind` and `key`; None when there is none that can be trusted to be unchanged."""
        if self.mode in (Mode.OFF, Mode.FORCE) or not self._file().exists():
            return None
        row: Any = None
        with self._reported("read"), self._connection() as database:
            row = database.execute("SELECT value, digest, used FROM entries WHERE kind = ? AND key = ?", (kind, key)).fetchone()
            if row is None:
                return None
            value, digest, used = row
            if not _is_whole(kind, key, value, digest, used):
                _log.warning("the cache's %s entry %s is damaged; it is computed again", kind, key)
                self._delete(database, kind, key)
                return None
            if self.mode is Mode.ON and time.time() - used > _TOUCHED_SECONDS:
                database.execute("UPDATE entries SET used = ? WHERE kind = ? AND key = ?", (time.time(), kind, key))
        return None if row is None else cast(dict[str, Any], json.loads(row[0]))

    def put(self, kind: str, key: str, value: Document) -> None:
        """Keep `value`, which must be JSON, in the place of what was there; then forget what exceeds the size."""
        if self.mode in (Mode.OFF, Mode.READ_ONLY):
            return
        text = json.dumps(value, separators=(",", ":"))
        with self._reported("write"):
            make_private(self.directory)
            with self._connection() as database:
                self._insert(database, kind, key, text)
                self._evict(database)

    def entries(self) -> list[Entry]:
        """All documents, the last used first. Raises StorageError when the file cannot be read."""
        if not self._file().exists():
            return []
        with self._raised("read"), self._connection() as database:
            rows = database.execute(f"SELECT kind, key, bytes, used, {_ABOUT} FROM entries ORDER BY used DESC, kind, key")
            return [Entry(*row) for row in rows]

    def remove(self, kind: str | None = None, key: str | None = None) -> int:
        """Forget the documents of that kind (any) and key (any); how many there were. Raises StorageError."""
        if not self._file().exists():
            return 0
        with self._raised("write"), self._connection() as database:
            condition = "(?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR key = ?2)"
            return database.execute(f"DELETE FROM entries WHERE {condition}", (kind, key)).rowcount

    def export_to(self, path: Path) -> int:
        """Write all undamaged documents to a text file, one JSON object a line; how many. Raises StorageError."""
        count = 0
        with self._raised("export"), open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps({"mugraph-cache": FORMAT}) + "\n")
            if self._file().exists():
                with self._connection() as database:
                    for kind, key, value, digest in database.execute("SELECT kind, key, value, digest FROM entries"):
                        if not _is_whole(kind, key, value, digest, 0.0):
                            continue
                        file.write(json.dumps({"kind": kind, "key": key, "digest": digest, "value": value}) + "\n")
                        count += 1
        return count

    def import_from(self, path: Path) -> int:
        """Add the documents of an exported file, all or none; how many.

        Raises InvalidInput naming the line of a file that is not one or was changed, StorageError.
        """
        with self._raised("import"):
            lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
        match _parsed(lines[0]) if lines else None:
            case {"mugraph-cache": int(number)} if number > FORMAT:
                raise InvalidInput(f"{path} was exported by a newer mugraph (format {number}, here {FORMAT}); use that")
            case {"mugraph-cache": number} if number == FORMAT:
                pass
            case _:
                raise InvalidInput(f"{path} is no exported cache of format {FORMAT}; write one with `mugraph cache export`")
        documents = [_checked(path, number, line) for number, line in enumerate(lines[1:], start=2)]
        with self._raised("import"):
            make_private(self.directory)
            with self._connection() as database:
                for kind, key, value in documents:
                    self._insert(database, kind, key, value)
                self._evict(database)
        return len(documents)

    # --- inside ---

    def _file(self) -> Path:
        """The database in use: the last one, for a damaged one is left for the next number."""
        return self.directory / f"store-{FORMAT}.{self._generation()}.sqlite"

    def _generation(self) -> int:
        pattern = re.compile(rf"store-{FORMAT}\.(\d+)\.sqlite")
        with contextlib.suppress(OSError):
            names = (pattern.fullmatch(entry.name) for entry in self.directory.iterdir())
            return max((int(match[1]) for match in names if match), default=1)
        return 1

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end, rolled back by an error."""
        check_private(self.directory)
        file = self._file()
        read_only = self.mode is Mode.READ_ONLY
        if not read_only:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))  # SQLite's own go by the umask, and its logs as it does
        # Without the right to write there is no shared memory for the log either, and nobody who could be writing.
        options = "" if not read_only else "?mode=ro" if os.access(self.directory, os.W_OK) else "?mode=ro&immutable=1"
        try:
            with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}{options}", _BUSY_SECONDS, uri=True)) as database:
                if not read_only:
                    _prepare(database)
                _check_form(database)
                with database:
                    yield database
        except sqlite3.DatabaseError as error:
            if _is_damaged(error) and not read_only:
                self._leave_behind(file)
            raise

    def _leave_behind(self, damaged: Path) -> None:
        """Go on with a new file. Others may still write to the old one: that harms nobody once it has a successor."""
        generation = int(damaged.name.split(".")[1])
        _log.warning("the cache %s is damaged; a new one replaces it", damaged)
        successor = self.directory / f"store-{FORMAT}.{generation + 1}.sqlite"
        os.close(os.open(successor, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))
        with contextlib.closing(sqlite3.connect(successor)) as database:
            database.execute(_SCHEMA)
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                Path(f"{damaged}{suffix}").unlink(missing_ok=True)

    def _insert(self, database: sqlite3.Connection, kind: str, key: str, value: str) -> None:
        row = (kind, key, value, digest_of(kind, key, value), len(value.encode()), time.time())
        database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)

    def _delete(self, database: sqlite3.Connection, kind: str, key: str) -> None:
        if self.mode is not Mode.READ_ONLY:
            database.execute("DELETE FROM entries WHERE kind = ? AND key = ?", (kind, key))

    def _evict(self, database: sqlite3.Connection) -> None:
        (total,) = database.execute("SELECT coalesce(sum(bytes), 0) FROM entries").fetchone()
        if total <= self.max_bytes:
            return
        for kind, key, size in database.execute("SELECT kind, key, bytes FROM entries ORDER BY used").fetchall():
            if total <= self.max_bytes:
                break
            self._delete(database, kind, key)
            total -= size

    @contextlib.contextmanager
    def _reported(self, verb: str) -> Iterator[None]:
        """Errors of files as lines of the log: the caller computes what it did not get."""
        file = self._file()  # a damaged one is followed by another, which is not at fault
        try:
            yield
        except (OSError, sqlite3.Error, NotPrivate) as error:
            said = (verb, str(file), str(error))
            _log.log(
                logging.DEBUG if said in _SAID else logging.WARNING, "cannot %s the cache %s (%s); going on without it", *said
            )
            _SAID.add(said)

    @contextlib.contextmanager
    def _raised(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"cannot {verb} the cache {self._file()}: {error}; check its permissions and disk") from error


def _prepare(database: sqlite3.Connection) -> None:
    """Settings and schema. While another connection closes as the last one, SQLite refuses them at once instead of waiting."""
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _SCHEMA):
                database.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


class _OtherForm(sqlite3.DatabaseError):
    """A database whose tables are not those of a store."""


def _check_form(database: sqlite3.Connection) -> None:
    """Raise _OtherForm unless the table has the columns, and nothing runs beside what is asked."""
    columns = [(name, kind) for _, name, kind, *_ in database.execute("PRAGMA table_info(entries)")]
    others = database.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()[0]
    if columns != _COLUMNS or others:
        raise _OtherForm("its tables are not those of a store")


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether a file is no good; text that is not UTF-8 is found by Python, whose errors have no code."""
    return isinstance(error, _OtherForm) or getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGED


def _is_whole(kind: str, key: str, value: Any, digest: Any, used: Any) -> bool:
    """Whether a row is one that was put: columns of a damaged file may hold anything."""
    typed = isinstance(value, str) and isinstance(used, (int, float))
    return typed and digest == digest_of(kind, key, value) and isinstance(_parsed(value), dict)


def digest_of(*parts: str) -> str:
    """The SHA-256 of texts, as hexadecimal digits; no two lists of texts have the same but by breaking the hash."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None


def _checked(path: Path, number: int, line: str) -> tuple[str, str, str]:
    """Kind, key and text of one line of an exported file."""
    match _parsed(line):
        case {"kind": str(kind), "key": str(key), "value": str(value), "digest": str(digest)}:
            if digest == digest_of(kind, key, value) and isinstance(_parsed(value), dict):
                return kind, key, value
    raise InvalidInput(f"line {number} of {path} was changed or cut off since the export; nothing was imported")
