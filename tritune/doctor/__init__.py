"""The doctor: what is wrong on this machine, in the repository, on the running server, in a log; and what to do.

Belongs here: the whole look. The parts are in of_machine, of_repository, of_server and of_log; what a line of a log
means is in catalogue.toml; what a button does is in remedies. Never: widgets, printing.
"""

from __future__ import annotations

from tritune.doctor import of_log, of_machine, of_repository, of_server, remedies
from tritune.doctor.diagnosis import Area, Checked, Diagnosis, Job, Remedy, Report, Step
from tritune.settings import Settings

__all__ = ["Area", "Checked", "Diagnosis", "Job", "Remedy", "Report", "Step", "look", "of_log", "remedies"]


def look(settings: Settings) -> Report:
    """Environment, repository and running server."""
    machine = of_machine.judge(of_machine.look(settings))
    return machine + of_repository.diagnose(settings) + of_server.diagnose(settings)
