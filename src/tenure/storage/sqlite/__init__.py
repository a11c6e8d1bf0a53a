"""The SQLite storage: jobs in one file, shared by all processes of one machine."""

from tenure.storage.sqlite.storage import SQLiteStorage

__all__ = ["SQLiteStorage"]
