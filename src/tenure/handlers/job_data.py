"""The data of a job: a small document that its handler changes and that its next run finds."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from msgspec import MsgspecError

from tenure.core.document import DATA_LIMIT, NotADocumentError, decode_document, encode_document
from tenure.errors import PayloadTooLargeError, UsageError


class JobData(MutableMapping[str, Any]):
    """The job's data, as a mapping of names to JSON values.

    Each assignment is stored within half a second, and the last one before the run is settled. The next run of the job
    finds it, also after a crash. A change inside a nested value is stored with the next assignment, or when the run
    ends.

    Raises, when it is changed:
        PayloadTooLargeError: the document would take more than 64 KiB of JSON. The data stays as it was.
        UsageError: a value is not plain JSON. The data stays as it was.
    """

    def __init__(self, task: str, stored: bytes | None, save: Callable[[bytes], None]) -> None:
        self._task = task
        try:
            self._values: dict[str, Any] = {} if stored is None else decode_document(stored)
        except MsgspecError as error:
            raise UsageError(f"the stored data of {task!r} cannot be read: {error}") from None
        self._saved = b"{}" if stored is None else encode_document(self._values)
        self._save = save

    def __getitem__(self, name: str) -> Any:
        """Return a value."""
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a value, and have the document stored."""
        self._change({**self._values, name: value})

    def __delitem__(self, name: str) -> None:
        """Delete a value, and have the document stored."""
        rest = dict(self._values)
        del rest[name]
        self._change(rest)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def __repr__(self) -> str:
        """Return the values as text."""
        return f"JobData({self._values!r})"

    def update(self, other: Any = (), /, **values: Any) -> None:
        """Set several values at once, and have the document stored."""
        self._change({**self._values, **dict(other), **values})

    def clear(self) -> None:
        """Delete all values, and have the document stored."""
        self._change({})

    def save(self) -> None:
        """Have changes inside nested values stored; the worker does so when the run ends."""
        self._change(self._values)

    def _change(self, values: Mapping[str, Any]) -> None:
        body = self._encoded(values)
        self._values = dict(values)
        if body != self._saved:
            self._saved = body
            self._save(body)

    def _encoded(self, values: Mapping[str, Any]) -> bytes:
        try:
            body = encode_document(values)
        except NotADocumentError as error:
            raise UsageError(f"the data of {self._task!r} must be plain JSON: {error}") from None
        if len(body) > DATA_LIMIT:
            raise PayloadTooLargeError(self._task, len(body), DATA_LIMIT, "the values of the data")
        return body
