"""The identity of a job."""

from msgspec import Struct


class Ref(Struct, frozen=True, order=True, gc=False):
    """The identity of a job. Its id is unique within its queue only."""

    queue: str
    id: str
