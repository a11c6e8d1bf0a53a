"""Fills the arguments of a run with the results of other jobs, before its handler is called."""

import asyncio
import logging
from random import Random

from msgspec import structs

from tenure.client.codec import Codec
from tenure.client.references import MissingResultError, OpenArguments, jobs_of, read_jobs
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import RecordedError
from tenure.core.outcome import Interrupted, Outcome, Unreadable
from tenure.errors import StorageError, StorageUnavailableError
from tenure.failures import recorded
from tenure.storage.protocol import Storage
from tenure.worker.active_runs import ActiveRun

DELAY = ExponentialDelay(0.05, 1.0)
"""The delay between two attempts while the storage is unreachable."""


class ReferencedResults:
    """Reads the results that jobs get from other jobs of their flows."""

    def __init__(self, storage: Storage, codec: Codec, rng: Random, logger: logging.Logger) -> None:
        self._storage = storage
        self._codec = codec
        self._rng = rng
        self._logger = logger

    async def fill(self, run: ActiveRun) -> Outcome | None:
        """Replace the references in the arguments of a run by the results. Return an outcome if it cannot run.

        The job in the storage keeps its references, so that each run reads the latest results. While the storage is
        unreachable, this tries again until the run is stopped.
        """
        job = run.lease.job
        if job.unreadable is not None:
            return None
        try:
            arguments = OpenArguments(self._codec, job.payload)
            refs = [ref for reference in arguments.references for ref in jobs_of(reference.of)]
        except Exception as error:
            # Codecs are user code.
            return Unreadable(recorded(error))
        failures = 0
        while arguments.references:
            try:
                jobs = await read_jobs(self._storage, list(dict.fromkeys(refs)))
                payload = arguments.filled(jobs)
            except StorageUnavailableError as error:
                failures += 1
                if failures == 1:
                    self._logger.warning(
                        "job %s: cannot read the results that it needs, trying again: %s", job.id, error
                    )
                if run.stop is not None:
                    return None
                await asyncio.sleep(DELAY.rest(failures, self._rng))
            except StorageError as error:
                self._logger.error("job %s: cannot read the results that it needs: %s", job.id, error)
                return Interrupted("unreachable")
            except MissingResultError as error:
                return Unreadable(RecordedError("MissingResultError", str(error)))
            except Exception as error:
                return Unreadable(recorded(error))
            else:
                run.lease = structs.replace(run.lease, job=structs.replace(job, payload=payload))
                break
        return None
