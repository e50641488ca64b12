"""Whether other jobs of the service live: what Slurm shows, against what they write."""

from __future__ import annotations

from contextlib import suppress

from .slurm import ALIVE, Cluster
from .state import ServiceFolder, is_silent


class OtherJobs:
    """Jobs of the service beside this one."""

    def __init__(self, service: ServiceFolder, cluster: Cluster) -> None:
        self._service = service
        self._cluster = cluster
        # The heartbeat that a job had when Slurm first showed its end.
        self._last_heartbeats: dict[str, str] = {}

    def may_live(self, job_id: str) -> bool | None:
        """Whether a job waits or runs; `None` where nobody can say.

        Slurm's word counts unless the job itself disproves it: by a fresh heartbeat where Slurm has
        no such job (it hides those of another user, `PrivateData`), by a new one where Slurm shows
        its end. A job that is long silent may be another by now, of the same number.
        """
        state, job = self._cluster.job_state(job_id), self._service.job(job_id)
        is_alive = None if state is None else state in ALIVE
        with suppress(OSError):  # a record that cannot be read says nothing
            if (run := job.run) is None:
                return is_alive
            if is_alive and is_silent(run) and self._cluster.is_another_program(job_id):
                return False
            if is_alive:
                self._last_heartbeats.pop(job_id, None)
            elif is_alive is False and job.says_it_lives():
                last = self._last_heartbeats.setdefault(job_id, run["heartbeat"])
                return False if state and last == run["heartbeat"] else None
        return is_alive
