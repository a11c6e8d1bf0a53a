"""SQLite storage creates its own file, and changes no file of another program."""

import os
import sqlite3
from pathlib import Path

import pytest

from tenure.core.job import Ref
from tenure.errors import SchemaMismatchError, StorageError, StorageUnavailableError, UsageError
from tenure.storage.protocol import ClaimRequest, SweepRequest
from tenure.storage.sqlite import SQLiteStorage, filesystem_check, health
from tenure.storage.sqlite.checkpoint import MAX_PAGES, Checkpoints
from tenure.storage.sqlite.database import SCHEMA, require_version
from tenure.testing import ManualClock
from tests.storage.helpers import job, owner


def contents(folder: Path) -> dict[str, bytes]:
    # The shared memory of a database is not content: each reader marks its position there.
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


async def refused(path: Path, *, auto_migrate: bool = True) -> str:
    """Return the message of the refusal, and check that no file was changed."""
    before = contents(path.parent)
    storage = SQLiteStorage(path, auto_migrate=auto_migrate)
    with pytest.raises(SchemaMismatchError) as refusal:
        await storage.open()
    await storage.close()

    assert contents(path.parent) == before
    return str(refusal.value)


async def test_a_new_file_is_made_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs with spaces ?#%41.db"
    for found in (0, 1):
        storage = SQLiteStorage(path)
        await storage.open()

        assert len((await storage.survey()).queues) == found

        await storage.enqueue([job("one")])
        await storage.close()

    assert sorted(contents(tmp_path)) == [path.name, f"{path.name}.lock"]


async def test_a_file_and_a_link_to_it_are_one_storage_with_one_lock_file(tmp_path: Path) -> None:
    path, link = tmp_path / "jobs.db", tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    mine, theirs = SQLiteStorage(path), SQLiteStorage(link)
    await mine.enqueue([job("a")])
    claimed = await mine.exchange(owner(), (), ClaimRequest(("q",), 1))
    swept = await theirs.sweep(SweepRequest(owner()))
    findings = await theirs.examine()
    await mine.close()
    await theirs.close()

    assert len(claimed.leases) == 1
    assert swept.stalled == ()
    assert not [finding for finding in findings if finding.level == "error"]
    assert [place.name for place in link.parent.iterdir()] == ["link.db"]


async def test_an_empty_file_is_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    storage = SQLiteStorage(path)
    await storage.enqueue([job("one")])
    await storage.close()


@pytest.mark.parametrize("text", [b"dear diary\n", b"SQLite format 3\0", b"\0" * 8192])
async def test_a_file_that_is_not_a_database_is_refused_unchanged(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "diary.txt"
    path.write_bytes(text)

    assert "diary.txt" in await refused(path)


@pytest.mark.fault("W-T3")
@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize(("number", "whose"), [(SCHEMA + 1, ", "), (SCHEMA - 1, " of a development version")])
async def test_another_schema_is_refused_untouched(tmp_path: Path, number: int, whose: str, in_use: bool) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.open()
    await storage.close()
    os.unlink(f"{path}.lock")
    newer = sqlite3.connect(path)
    newer.execute("UPDATE tenure_meta SET value = ? WHERE key = 'schema_version'", (number,))
    newer.commit()
    if not in_use:
        newer.close()

    assert f"schema {number}{whose}" in await refused(path)

    newer.close()


@pytest.mark.parametrize("exists", [False, True])
async def test_without_auto_migrate_the_error_names_the_command(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "jobs.db"
    if exists:
        path.touch()

    assert "tenure migrate" in await refused(path, auto_migrate=False)


async def test_a_schema_of_our_version_needs_no_migration(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.open()
    await storage.close()
    storage = SQLiteStorage(path, auto_migrate=False)
    await storage.open()
    await storage.close()


async def test_an_impossible_path_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for path, item in ((tmp_path / "no" / "jobs.db", "create it first"), (tmp_path, "is a directory")):
        storage = SQLiteStorage(path)
        with pytest.raises(UsageError, match=item):
            await storage.open()
        await storage.close()
    for name in (":memory:", "", "jobs\0.db"):
        with pytest.raises(UsageError, match="memory://"):
            SQLiteStorage(name)


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home rw,relatime - nfs4 server:/home rw
41 40 0:36 / /home/ann/local rw - tmpfs tmpfs rw
42 22 0:37 / /mnt/my\040disk rw - fuse.sshfs ann@server: rw
43 22 0:38 / /host rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/jobs.db", "ext4"),
        ("/home/ann/jobs.db", "nfs4"),
        ("/home/ann/local/jobs.db", "tmpfs"),
        ("/homestead/jobs.db", "ext4"),
        ("/mnt/my disk/jobs.db", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(path: str, kind: str) -> None:
    assert filesystem_check.file_system(path, MOUNTS) == kind


def test_a_file_system_that_may_be_shared_is_detected() -> None:
    assert filesystem_check.is_maybe_shared(filesystem_check.file_system("/host/jobs.db", MOUNTS))
    assert not filesystem_check.is_maybe_shared(filesystem_check.file_system("/var/jobs.db", MOUNTS))


async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"40 22 0:35 / {tmp_path} rw - nfs4 server:/home rw\n")
    monkeypatch.setattr(filesystem_check, "MOUNTINFO", table)
    storage = SQLiteStorage(tmp_path / "jobs.db")
    with pytest.raises(UsageError, match="network file system \\(nfs4\\)"):
        await storage.open()
    await storage.close()

    assert list(contents(tmp_path)) == ["mountinfo"]


def test_an_old_sqlite_is_refused() -> None:
    with pytest.raises(StorageError, match=r"3\.34\.1"):
        require_version((3, 34, 1))


async def test_a_closed_storage_says_so_until_it_is_opened_again(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("one")])
    await storage.close()
    await storage.close()
    with pytest.raises(StorageUnavailableError, match="closed"):
        await storage.survey()
    await storage.open()

    assert (await storage.enqueue([job("one")]))[0].action == "duplicate"

    await storage.close()


async def test_a_doctor_finds_a_healthy_file_healthy(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db", durability="fast")
    await storage.enqueue([job("one")])
    findings = {finding.subject: finding for finding in await storage.examine()}
    await storage.close()

    assert findings["durability"].level == "warning"
    assert not [finding for finding in findings.values() if finding.level == "error"]
    assert f"schema {SCHEMA}" in findings["schema"].message


async def test_a_shallow_examination_reads_no_job(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("one")])
    deep = {finding.subject for finding in await storage.examine()}
    shallow = {finding.subject for finding in await storage.examine(deep=False)}
    await storage.close()

    assert deep - shallow == {"integrity", "counters"}


@pytest.mark.parametrize(
    ("version", "affected"), [((3, 40, 1), True), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False)]
)
def test_a_doctor_says_which_sqlite_can_corrupt_a_log(version: tuple[int, ...], affected: bool) -> None:
    finding = health.library(version)

    assert finding.level == "ok"
    assert bool(finding.remedy) is ("in rare cases corrupt" in finding.message) is affected


@pytest.mark.parametrize(("mode", "level"), [("wal", "ok"), ("delete", "error")])
def test_a_doctor_finds_a_journal_of_another_mode(mode: str, level: str) -> None:
    assert health.journal(mode).level == level


def test_the_doctor_finds_a_write_ahead_log_without_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    few = health.log(str(path))
    with open(f"{path}-wal", "wb") as log:
        # A sparse file: it takes no space on the disk.
        log.truncate(300 << 20)
    much = health.log(str(path))

    assert few.level == "ok"
    assert (much.level, much.message.split(":")[0]) == ("warning", "the write-ahead log takes 300 MiB")


async def test_a_doctor_finds_a_deleted_log(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.enqueue([job("first")])
    before = health.log(str(path))
    (tmp_path / "jobs.db-wal").unlink()
    deleted = health.log(str(path))
    await storage.enqueue([job("second")])
    after = health.log(str(path))
    await storage.close()

    assert [finding.level for finding in (before, deleted, after)] == ["ok", "error", "ok"]
    assert str(os.getpid()) in deleted.message


async def test_after_the_file_was_deleted_the_new_one_is_used(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.enqueue([job("old")])
    await storage.survey()
    for name in contents(tmp_path):
        os.unlink(tmp_path / name)
    (receipt,) = await storage.enqueue([job("new")])
    seen = await storage.get([Ref("q", "old"), Ref("q", "new")])
    other = SQLiteStorage(path)
    theirs = await other.get([Ref("q", "new")])
    findings = await other.examine()
    await storage.close()
    await other.close()

    assert receipt.action == "created"
    assert [detail is not None for detail in seen] == [False, True]
    assert theirs[0] is not None
    assert not [finding for finding in findings if finding.level == "error"]


async def test_a_policy_of_a_newer_version_holds_up_no_other_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    clock = ManualClock()
    storage = SQLiteStorage(path, clock=clock)
    await storage.enqueue([job("newer"), job("neighbour"), job("held"), job("other")])
    connection = sqlite3.connect(path)
    connection.execute("""UPDATE tenure_job SET policy = '{"on_worker_lost":"ask"}' WHERE id IN ('newer', 'held')""")
    connection.commit()
    connection.close()
    worker, reaper = owner(), owner()
    first = await storage.exchange(worker, order=ClaimRequest(("q",), 4))
    clock.advance(40)
    swept = await storage.sweep(SweepRequest(reaper, term=None))
    clock.advance(20)
    swept = await storage.sweep(SweepRequest(reaper, term=None))
    await storage.close()

    assert [lease.ref.id for lease in first.leases] == ["newer", "neighbour", "held", "other"]
    assert {stalled.lease.ref.id for stalled in swept.stalled} == {"newer", "neighbour", "held", "other"}
    # A job whose policy this version cannot read is not run again.
    lost = {stalled.lease.ref.id: stalled.lease.job.policy.on_worker_lost for stalled in swept.stalled}
    assert lost == {"newer": "fail", "neighbour": "retry", "held": "fail", "other": "retry"}
    assert swept.troubles == ()


@pytest.mark.thorough
def test_the_write_ahead_log_is_bounded_without_a_leader(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection = sqlite3.connect(path, isolation_level=None)
    for line in ("journal_mode = WAL", "wal_autocheckpoint = 0", "synchronous = OFF", "journal_size_limit = 0"):
        connection.execute(f"PRAGMA {line}").fetchall()
    connection.execute("CREATE TABLE blob (body)")
    checkpoints = Checkpoints(str(path), ManualClock())
    longest = 0
    for _ in range(10):
        connection.execute("INSERT INTO blob VALUES (zeroblob(?))", (MAX_PAGES * 4200,))
        longest = max(longest, os.path.getsize(f"{path}-wal"))
        checkpoints.checkpoint_if_due(connection, leading=False)
    connection.close()

    assert longest < 3 * MAX_PAGES * 4200


@pytest.mark.thorough
async def test_a_writer_checkpoints_a_long_log_without_a_leader(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.enqueue([job("first")])
    before = path.stat().st_size
    # A single commit may be as long as many small ones.
    await storage.enqueue([job("large", payload=bytes(MAX_PAGES * 4200))])
    carried_over = path.stat().st_size
    await storage.close()

    assert before < MAX_PAGES * 4096 < carried_over
