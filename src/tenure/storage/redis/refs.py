"""Encodes the identities of jobs for scripts."""

from tenure.core.ref import Ref


def encode_ref(ref: Ref) -> str:
    """Return a job's reference as scripts use it. The names of queues and jobs contain no NUL."""
    return f"{ref.queue}\0{ref.id}"


def decode_ref(joined: bytes) -> Ref:
    """Return the job that a script's reference names."""
    queue, _, job = joined.decode().partition("\0")
    return Ref(queue, job)
