"""Test the inotify watch on covered files. A cover is a mount that hides or protects a file in the
sandbox. The watch reports a covered file that was removed or replaced on the host. The tests do not
need a sandbox.
"""

from __future__ import annotations

import errno
import os
import select
import shutil

import pytest

from corral.abi import linux as abi
from corral.plan.model import Cover, Covers
from corral.platforms.linux.replaced_files import ReplacedFiles


class Child:
    killed = 0

    def kill(self) -> None:
        self.killed += 1


def cover(path, top, *, repository: bool = False) -> Cover:
    seen = path.lstat()
    return Cover(
        path=str(path),
        device=seen.st_dev,
        inode=seen.st_ino,
        top=str(top),
        directory=path.is_dir(),
        repository=repository,
    )


@pytest.fixture
def watch():
    made = []

    def start(*covers: Cover, strict: bool = False) -> ReplacedFiles:
        made.append(ReplacedFiles(Covers(names=covers, strict=strict), Child()))
        return made[-1]

    yield start
    for service in made:
        service.close()


def is_ready(service: ReplacedFiles) -> bool:
    return bool(select.select([service.fileno()], [], [], 0)[0])


def test_the_watch_is_not_woken_if_no_watched_name_is_replaced(watch, tmp_path):
    for name in ("a/.env", "a/other", "free"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    service = watch(cover(tmp_path / "a/.env", tmp_path))
    (tmp_path / "a/other").write_text("more")
    (tmp_path / "a/.env").read_text()
    (tmp_path / "a/new").write_text("")
    assert not is_ready(service)
    assert service.deadline() is None


def test_a_file_with_the_same_inode_number_is_another_file(watch, tmp_path):
    """Remove a file and create it again. Many file systems give the new file the old inode number.
    The watch must still report it, because inotify reports the removal of the old file.
    """
    path = tmp_path / ".env"
    path.write_text("old")
    service = watch(cover(path, tmp_path))
    path.unlink()
    path.write_text("new")
    service.run_ready()
    assert len(service.replaced) == 1
    path.unlink()
    service.run_ready()
    assert len(service.replaced) == 1


def test_a_new_hard_link_or_mode_does_not_count_as_a_replacement(watch, tmp_path):
    path = tmp_path / ".env"
    path.write_text("old")
    service = watch(cover(path, tmp_path))
    os.link(path, tmp_path / "second")
    path.chmod(0o600)
    os.unlink(tmp_path / "second")
    service.run_ready()
    assert service.replaced == []


def test_the_watch_pauses_after_many_removed_files(watch, tmp_path):
    (tmp_path / ".git").mkdir()
    service = watch(cover(tmp_path / ".git", tmp_path, repository=True))
    for number in range(500):
        (tmp_path / f"{number}").touch()
        (tmp_path / f"{number}").unlink()
    assert is_ready(service)
    service.run_ready()
    assert service.deadline() is not None
    (tmp_path / "more").touch()
    (tmp_path / "more").unlink()
    assert not is_ready(service)
    shutil.rmtree(tmp_path / ".git")
    service._paused_until = 0.0
    service.run_ready()
    service._paused_until = 0.0 if service.deadline() else None
    service.run_ready()
    assert "the run was stopped" in service.replaced[0]
    assert service._child.killed == 1


def test_lost_events_make_the_watch_check_every_name(watch, tmp_path):
    path = tmp_path / ".env"
    path.write_text("old")
    service = watch(cover(path, tmp_path))
    path.rename(tmp_path / "away")
    service._handle(-1, abi.IN_Q_OVERFLOW, "")
    assert len(service.replaced) == 1


def test_a_file_replaced_before_the_watch_began_is_reported(watch, tmp_path):
    path = tmp_path / ".env"
    path.write_text("old")
    known = cover(path, tmp_path)
    path.rename(tmp_path / "away")
    path.write_text("new")
    assert len(watch(known).replaced) == 1


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_host_without_watches_left_is_reported(watch, tmp_path, monkeypatch, call, strict):
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(abi, call, fail)
    (tmp_path / ".git").mkdir()
    service = watch(cover(tmp_path / ".git", tmp_path, repository=True), strict=strict)
    service.run_ready()
    assert "cannot watch the hidden and read-only paths: No space left" in service.replaced[0]
    assert service._child.killed == strict


def test_control_characters_in_a_reported_name_are_escaped(watch, tmp_path, capfd):
    path = tmp_path / "\x1b[2K" / ".env"
    path.parent.mkdir()
    path.write_text("")
    service = watch(cover(path, tmp_path))
    path.unlink()
    service.run_ready()
    assert "\x1b" not in service.replaced[0] + capfd.readouterr().err
