"""The policy of a job as storages keep it: one JSON text, which most jobs of a task share."""

from functools import lru_cache

import msgspec

from tenure.core.job import Policy
from tenure.core.retry import Backoff

DEFAULT_POLICY = Policy()
STRICTEST_POLICY = Policy(retry=Backoff(max_attempts=1), on_worker_lost="fail")
"""A job with this policy does not run again after any failure."""

_read = msgspec.json.Decoder(Policy).decode


@lru_cache(1024)
def decode_policy(body: str) -> Policy:
    """Return the policy in a text, or the strictest one if it has a value that this version does not know.

    A newer version may have written it. The job must block neither the jobs behind it nor its reaper.
    """
    try:
        return _read(body)
    except msgspec.ValidationError:
        return STRICTEST_POLICY
