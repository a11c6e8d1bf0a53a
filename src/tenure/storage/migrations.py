"""What `tenure migrate` shows of a storage's schema and of the migrations that are missing."""

from msgspec import Struct


class PendingMigration(Struct, frozen=True, kw_only=True):
    """A numbered file. `oldest`: after it only programs that know this schema or a newer one can use the storage."""

    number: int
    file: str
    oldest: int


class CutOffWorker(Struct, frozen=True, kw_only=True):
    """A live worker that could not go on after the pending migrations. `knows`: the newest schema that it knows."""

    name: str
    host: str
    pid: int
    knows: int


class MigrationStatus(Struct, frozen=True, kw_only=True):
    """The state of a schema. `schema`: its number, 0 if it does not exist yet. `newest`: the one of this version."""

    url: str
    schema: int
    newest: int
    features: tuple[str, ...] = ()
    pending: tuple[PendingMigration, ...] = ()
    cut_off: tuple[CutOffWorker, ...] = ()
