"""Checks that a database lies in an existing directory on a local file system."""

import os
import re
from pathlib import Path

from tenure.errors import StorageError, UsageError
from tenure.storage.sqlite.permissions import missing_permission

MOUNTINFO = Path("/proc/self/mountinfo")

_NETWORK = {
    "9pnet", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb2", "smb3", "smbfs",
    "fuse.ceph", "fuse.curlftpfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.rclone",
    "fuse.s3fs", "fuse.seaweedfs", "fuse.smbnetfs", "fuse.sshfs",
}  # fmt: skip
_DOUBTFUL = re.compile(r"9p|drvfs|fuse(\..*)?|prl_fs|vboxsf|virtiofs|vmhgfs")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check(path: str, mountinfo: str | None = None) -> None:
    """Refuse a path at which a database is not safe.

    Raises:
        UsageError: the directory does not exist, or lies on another machine.
        StorageError: the directory cannot be reached without more rights.
    """
    folder = os.path.dirname(path)
    if not (os.path.isdir(folder) and os.access(folder, os.X_OK)):
        if (right := missing_permission(path)) is not None:
            raise StorageError(right)
        raise UsageError(f"the directory {folder} of the database {path} does not exist; create it first")
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory; name a file in it, such as {os.path.join(path, 'tenure.db')}")
    kind = file_system(path, mountinfo)
    if kind in _NETWORK:
        raise UsageError(
            f"{path} lies on a network file system ({kind}), where SQLite loses data: its log needs memory that all "
            "processes share; put it on a local disk, or use a server such as PostgreSQL or Redis"
        )


def file_system(path: str, mountinfo: str | None = None) -> str | None:
    """Return the type of the file system that contains a path, None if the system does not report it."""
    table = _mounts() if mountinfo is None else mountinfo
    place = os.path.realpath(path)
    found: tuple[int, str] | None = None
    for line in table.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # Of two mounts on one mount point, the later one covers the earlier.
        if inside and (found is None or len(point) >= found[0]):
            found = (len(point), tail.split(" ")[0])
    return found[1] if found else None


def is_maybe_shared(kind: str | None) -> bool:
    """Return True if it is unknown whether this type of file system is local."""
    return kind is not None and _DOUBTFUL.fullmatch(kind) is not None


def _mounts() -> str:
    try:
        return MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
