"""Directories that others can change are not used, whoever they are and however they would do it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mugraph.errors import StorageError
from mugraph.support import private_directories
from mugraph.support.private_directories import NotPrivate, check_private, make_private
from mugraph.support.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this platform has no user ids")
root_only = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
STRANGER = 54321


@pytest.fixture
def own(tmp_path: Path) -> Path:
    make_private(tmp_path / "own" / "cache")
    return tmp_path / "own" / "cache"


def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path) -> None:
    usual = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(usual)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o702, 0o777, 0o1777, 0o707])
def test_a_directory_that_everybody_can_write_to_is_refused(own: Path, mode: int) -> None:
    own.chmod(mode)
    with pytest.raises(NotPrivate, match=f"run `chmod go-w {own}`, or set MUGRAPH_CACHE_DIR"):
        check_private(own)


def test_so_is_one_that_lies_in_such_a_directory_unless_that_is_sticky(own: Path) -> None:
    own.parent.chmod(0o777)
    with pytest.raises(NotPrivate, match=f"{own.parent} can be written to"):
        check_private(own)
    own.parent.chmod(0o1777)
    check_private(own)


@root_only
def test_a_directory_of_another_user_is_refused_and_so_is_a_link_of_theirs(own: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(own)
    check_private(link)
    os.lchown(link, STRANGER, -1)
    with pytest.raises(NotPrivate, match=f"{link} belongs to user {STRANGER}"):
        check_private(link)
    check_private(own)
    os.chown(own.parent, STRANGER, -1)
    with pytest.raises(NotPrivate, match=f"{own.parent} belongs to user {STRANGER}"):
        check_private(own)


def test_what_a_link_leads_to_is_checked(own: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own)
    own.chmod(0o777)
    with pytest.raises(NotPrivate, match=f"{own} can be written to"):
        check_private(tmp_path / "link")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(OSError, match="circle"):
        check_private(tmp_path / "circle")


def test_a_group_of_one_may_write(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User-private groups, with umask 002."""
    import grp
    import pwd

    own.chmod(0o770)
    user = SimpleNamespace(pw_name="ada", pw_gid=own.stat().st_gid)
    others: list[SimpleNamespace] = []
    members: list[str] = []
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(pwd, "getpwall", lambda: [user, *others])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_mem=members))
    check_private(own)
    members.append("ada")
    check_private(own)
    monkeypatch.setattr(os, "listxattr", lambda path: ["system.posix_acl_access"])
    with pytest.raises(NotPrivate):
        check_private(own)
    monkeypatch.setattr(os, "listxattr", lambda path: [])
    members.append("grace")
    with pytest.raises(NotPrivate):
        check_private(own)
    members.remove("grace")
    others.append(SimpleNamespace(pw_name="grace", pw_gid=user.pw_gid))
    with pytest.raises(NotPrivate):
        check_private(own)


def test_a_user_without_a_name_shares_no_group(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    own.chmod(0o770)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(NotPrivate):
        check_private(own)


@root_only
def test_in_a_container_the_owner_of_what_lies_outside_is_believed(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(own.parent, 65534, -1)
    with pytest.raises(NotPrivate):
        check_private(own)
    monkeypatch.setattr(private_directories, "_unmapped_owner", lambda: 65534)
    check_private(own)


def test_a_store_in_a_shared_directory_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "cache")
    store.put("result", "a", {"n": 1})
    (file,) = store.directory.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    store.directory.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert store.get("result", "a") is None
        store.put("result", "b", {"n": 2})
    assert caplog.text.count("can be written to by other users; run `chmod go-w") == 2
    with pytest.raises(StorageError, match="MUGRAPH_CACHE_DIR"):
        store.entries()
    store.directory.chmod(0o700)
    assert store.get("result", "a") == {"n": 1}
    assert store.get("result", "b") is None
