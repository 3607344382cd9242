"""Which requests of a load test count for what: the samples cut by the measurement window.

Belongs here: the populations of docs/measurement.md. Never: estimates, files, clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.samples import Samples, Status
from tritune.errors import LoadTestError
from tritune.estimators import Durations, Int64

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests, each counted once. `warmup`: answered, intended before the window; `ok`: intended and answered
    in it; `drain`: answered after it. The other four were intended in the window and not answered."""

    ok: int
    failed: int
    warmup: int
    drain: int
    unsent: int
    timeout: int
    rejected: int

    @property
    def missed(self) -> int:
        return self.failed + self.unsent + self.timeout + self.rejected

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one load test, seen from its measurement window [start_ns, end_ns).

    `latencies` are those of every request intended inside the window that was answered (also after it) or that is
    censored at its known lower bound (timed out, unsent, unfinished); `intended_ns` is parallel to them. `lags`
    likewise are sent - intended of every request intended inside. `answers_ns` are the times of all answers inside
    the window, whenever their request was intended.
    """

    start_ns: int
    end_ns: int
    counts: RequestCounts
    latencies: Durations
    intended_ns: Int64
    services: Durations
    lags: Durations
    answers_ns: Int64
    completed: int
    """Requests that came to an end inside the window, well or badly: what the generator's CPU was spent on."""
    uncertain: int
    """Requests sent and never answered as far as we know; the server may have answered them."""

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def successes(self) -> int:
        return int(self.latencies.exact.size)

    @classmethod
    def cut(cls, samples: Samples, start_ns: int, end_ns: int) -> Window:
        """Raises LoadTestError where the window is empty."""
        if end_ns <= start_ns:
            raise LoadTestError(
                f"The load test was measured from {start_ns} to {end_ns} ns, which is no window: it ended before its "
                "warm-up did. Run it again."
            )
        intended, sent, done, status = samples.intended_ns, samples.sent_ns, samples.done_ns, samples.status
        inside = (intended >= start_ns) & (intended < end_ns)
        answered = (status == Status.OK) & (done >= 0)
        ends_inside = (done >= start_ns) & (done < end_ns)
        unsent = (status == Status.UNSENT) | (sent < 0)
        silent = ~unsent & ((status == Status.TIMEOUT) | (done < 0))

        def count(mask: NDArray[np.bool_]) -> int:
            return int(np.count_nonzero(mask))

        population = inside & (answered | unsent | silent)
        known_until = np.where(done >= 0, done, end_ns)[population]
        censored = ~answered[population]
        scheduled = np.where(sent >= 0, sent, end_ns)[inside]
        served = inside & answered
        return cls(
            start_ns=start_ns,
            end_ns=end_ns,
            counts=RequestCounts(
                ok=count(inside & answered & (done < end_ns)),
                failed=count(inside & (status == Status.FAILED) & ~unsent & ~silent),
                warmup=count(answered & (intended < start_ns)),
                drain=count(answered & (intended >= start_ns) & (done >= end_ns)),
                unsent=count(inside & unsent),
                timeout=count(inside & silent),
                rejected=count(inside & (status == Status.REJECTED) & ~unsent & ~silent),
            ),
            latencies=Durations(np.maximum(known_until - intended[population], 0), censored),
            intended_ns=intended[population],
            services=Durations((done - sent)[served], np.zeros(count(served), dtype=np.bool_)),
            lags=Durations(np.maximum(scheduled - intended[inside], 0), (sent < 0)[inside]),
            answers_ns=done[answered & ends_inside],
            completed=count(ends_inside & (sent >= 0)),
            uncertain=count(silent),
        )
