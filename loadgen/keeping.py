"""What a run keeps: every request in a file, or, beyond a stated number, their counts (histogram.py).

Belongs here: when one takes the place of the other. Never: what a request counts for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadgen.histogram import Tally
from loadgen.samples import Samples, SampleWriter, write_tally

ASSUMED_PEAK_RPS = 50_000  # of one process in a closed loop
AT_ONCE = 16_384  # a chunk's fixed cost is then nothing beside its samples


class Keeper:
    """Takes chunks of samples until `close`; `path` then holds what samples.read_stream reads.

    Both are kept side by side until there are more than `limit` samples; from then on the counts alone. Raises
    LoadTestError where the file cannot be written.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._writer: SampleWriter | None = SampleWriter(path)
        self._tally: Tally | None = None
        self._waiting: list[Samples] = []

    def begin(self, start_ns: int, end_ns: int, expected: float) -> None:
        """The window, and how many requests there may be in all: with fewer than the limit nothing is counted."""
        if expected > self._limit:
            self._tally = Tally(start_ns, end_ns)

    def write(self, samples: Samples) -> None:
        """Keep a chunk."""
        if self._tally is not None:
            self._waiting.append(samples)
            if sum(map(len, self._waiting)) >= AT_ONCE:
                self._count()
        if self._writer is None:
            return
        if self._tally is None or self._writer.count + len(samples) <= self._limit:
            self._writer.write(samples)
        else:
            writer, self._writer = self._writer, None
            writer.close()

    def _count(self) -> None:
        assert self._tally is not None
        self._tally.add(Samples.join(self._waiting))
        self._waiting.clear()

    def close(self) -> None:
        """Bring it to the disk."""
        if self._writer is not None:
            self._writer.close()
            return
        if self._tally is not None:
            self._count()
            write_tally(self._tally, self._path)

    @property
    def note(self) -> Mapping[str, str] | None:
        """What the result has to say about it, None where every request is kept."""
        if self._writer is not None:
            return None
        message = (
            "The requests were counted in an HDR histogram with three digits instead of being kept one by one "
            f"({'as asked for' if self._limit == 0 else f'there were more than {self._limit:,}'}), so latencies are up "
            "to 0.1 % too high."
        )
        return {"code": "histogram", "message": message}


def expected_requests(seconds: float, rate_rps: float | None, workers: int) -> float:
    """How many requests a run may have in all; `rate_rps` None in a closed loop."""
    return seconds * (rate_rps if rate_rps is not None else ASSUMED_PEAK_RPS * workers)
