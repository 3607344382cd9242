"""The Locust users: one is one client of a closed loop, or all the connections of an open loop's process.

Belongs here: the User classes, thin on purpose. Never: the hot loop (engine.py, loops.py), files.

A user's greenlet only joins the process's engine and waits: requests pass neither Locust's tasks nor its events.
Locust's statistics are fed in batches (statistics.py).
"""

from __future__ import annotations

from typing import Any

from locust import User, task
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

from loadgen.users.member import Member

_STOP_CHECK_S = 0.2


class TritonUser(User):
    """One client of the process's engine, from its start to its stop."""

    abstract = True

    @task
    def load(self) -> None:
        """Join the engine, stay until the load is over or Locust stops this user."""
        member: Member | None = getattr(self.environment, "tritune_member", None)
        if member is None:
            raise StopUser
        client: Any = member.join()
        try:
            while not member.over.wait(_STOP_CHECK_S):
                if self._state == LOCUST_STATE_STOPPING:
                    break
        finally:
            member.leave(client)
        raise StopUser


class TritonHttpUser(TritonUser):
    """KServe v2 over HTTP/1.1."""


class TritonGrpcUser(TritonUser):
    """KServe v2 over gRPC."""
