"""The flat record of a request and its file.

Belongs here: the schema, an append-only Arrow IPC stream written in chunks while the load runs, reading it back
whatever its end looks like, Parquet for keeping, and the same files with a long run's counts in them. Never:
percentiles, windows, clocks.

One record is one request, however many samples its batch has.
"""

from __future__ import annotations

import functools
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tritune.errors import LoadTestError

if TYPE_CHECKING:
    from loadgen.histogram import Tally

NEVER = -1  # the time of what did not happen
RECORD_WIDTH = 4  # intended, sent, done, status: the row of a packed batch
SAMPLES_FILE = "samples.arrow"
CHUNK = 1 << 16  # of what is worked on at once, so that a long run's samples need not all be in memory
_TALLY = ("table", "place", "count")
_TALLY_HEAD = b"tritune_tally"

Int64s = NDArray[np.int64]
Int16s = NDArray[np.int16]
Int8s = NDArray[np.int8]


class Status(IntEnum):
    """How a request ended."""

    OK = 0
    FAILED = 1
    TIMEOUT = 2
    UNSENT = 3
    REJECTED = 4


@dataclass(frozen=True, slots=True)
class Samples:
    """Requests in the order in which they were recorded, five columns of one length.

    The times are nanoseconds of CLOCK_MONOTONIC; NEVER (-1) where it did not happen. `done_ns` of a TIMEOUT is
    when it was given up. `status` holds Status values, `worker` the index of the generator's process.
    """

    intended_ns: Int64s
    sent_ns: Int64s
    done_ns: Int64s
    status: Int8s
    worker: Int16s

    def __len__(self) -> int:
        return len(self.intended_ns)

    @classmethod
    def empty(cls) -> Samples:
        return cls.join([])

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        """One after the other."""
        columns = [
            np.concatenate([getattr(part, column.name) for part in parts] or [np.empty(0)]).astype(kind)
            for column, kind in zip(fields(cls), _KINDS, strict=True)
        ]
        return cls(*columns)

    @classmethod
    def from_packed(cls, records: array[int] | bytes, worker: int) -> Samples:
        """Read a packed batch: int64 rows of intended, sent, done, status."""
        table = np.frombuffer(records, dtype=np.int64).reshape(-1, RECORD_WIDTH)
        return cls(
            np.ascontiguousarray(table[:, 0]),
            np.ascontiguousarray(table[:, 1]),
            np.ascontiguousarray(table[:, 2]),
            table[:, 3].astype(np.int8),
            np.full(len(table), worker, dtype=np.int16),
        )

    def chunks(self) -> Iterator[Samples]:
        """The same in stretches of at most CHUNK."""
        for first in range(0, len(self), CHUNK):
            yield self._slice(first, first + CHUNK)

    def _slice(self, first: int, last: int) -> Samples:
        return Samples(*(getattr(self, column.name)[first:last] for column in fields(self)))

    def earlier(self, by_ns: int) -> Samples:
        """The same on a clock that is `by_ns` behind; what never happened still did not."""

        def moved(times: Int64s) -> Int64s:
            return np.where(times == NEVER, NEVER, times - by_ns)

        return Samples(moved(self.intended_ns), moved(self.sent_ns), moved(self.done_ns), self.status, self.worker)

    @classmethod
    def unsent(cls, intended_ns: Int64s, worker: int) -> Samples:
        """Requests that could not be sent: nothing but their intended times."""
        never = np.full(len(intended_ns), NEVER, dtype=np.int64)
        return cls(
            intended_ns.astype(np.int64),
            never,
            never,
            np.full(len(intended_ns), Status.UNSENT, dtype=np.int8),
            np.full(len(intended_ns), worker, dtype=np.int16),
        )


_KINDS = (np.int64, np.int64, np.int64, np.int8, np.int16)


@functools.cache
def _schema() -> Any:
    import pyarrow as pa

    kinds = {np.int64: pa.int64(), np.int8: pa.int8(), np.int16: pa.int16()}
    return pa.schema([(column.name, kinds[kind]) for column, kind in zip(fields(Samples), _KINDS, strict=True)])


def _batch(samples: Samples) -> Any:
    import pyarrow as pa

    # from_buffers, since pa.array looks at NumPy arrays through pandas and would import it: half a second
    schema = _schema()
    columns = []
    for column in schema:
        values = pa.py_buffer(np.ascontiguousarray(getattr(samples, column.name)))
        columns.append(pa.Array.from_buffers(column.type, len(samples), [None, values]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class SampleWriter:
    """An append-only stream of samples. Every chunk that `write` returned from can be read, even while the stream
    grows and after the writer was killed.

    Raises LoadTestError where the disk is full or cannot be written; what was written before stays readable.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.path = path
        self.count = 0
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            self._stream = pa.ipc.new_stream(self._file, _schema())
        except OSError as error:
            self._file.close()
            raise _unwritable(path, error) from error

    def write(self, samples: Samples) -> None:
        """Append one chunk."""
        if not len(samples):
            return
        try:
            self._stream.write_batch(_batch(samples))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.count += len(samples)

    def close(self) -> None:
        """End the stream and bring it to the disk."""
        try:
            self._stream.close()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            self._file.close()


def _unwritable(path: Path, error: OSError) -> LoadTestError:
    return LoadTestError(
        f"The samples could not be written to {path} ({error.strerror or error}); what was measured before is kept. "
        "Free some space, or set TRITUNE_RESULTS to a folder on another disk, and run the load test again."
    )


def write_tally(tally: Tally, path: Path) -> None:
    """Write counts in the place of samples, under a temporary name first. Raises LoadTestError."""
    import pyarrow as pa

    table = _tally_table(tally)
    with _whole_file(path) as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there with all that the block writes, or not at all. Raises LoadTestError."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _tally_table(tally: Tally) -> Any:
    import pyarrow as pa

    rows = list(tally.rows())
    tables = np.concatenate([np.full(len(places), number, dtype=np.int64) for number, places, _ in rows])
    columns = (tables, np.concatenate([row[1] for row in rows]), np.concatenate([row[2] for row in rows]))
    arrays = [
        pa.Array.from_buffers(pa.int64(), len(tables), [None, pa.py_buffer(np.ascontiguousarray(column))])
        for column in columns
    ]
    return pa.Table.from_arrays(arrays, names=list(_TALLY)).replace_schema_metadata(
        {_TALLY_HEAD: json.dumps(tally.head()).encode()}
    )


def _tally_from(table: Any) -> Tally:
    from loadgen.histogram import Tally

    columns = (table.column(name).to_numpy() for name in _TALLY)
    return Tally.from_rows(json.loads(table.schema.metadata[_TALLY_HEAD]), *columns)


def _is_tally(schema: Any) -> bool:
    return schema.metadata is not None and _TALLY_HEAD in schema.metadata


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A stream's whole chunks, left in the file: `count` requests, read a stretch at a time."""

    path: Path
    count: int

    def __len__(self) -> int:
        return self.count

    def chunks(self) -> Iterator[Samples]:
        """All of them in stretches of about CHUNK. Raises LoadTestError where the file can no longer be read."""
        parts: list[Samples] = []
        for part in _stream(self.path):
            parts.append(part)
            if sum(map(len, parts)) >= CHUNK:
                yield from Samples.join(parts).chunks()
                parts = []
        yield from Samples.join(parts).chunks()


def open_stream(path: Path) -> SampleFile | Tally:
    """As `read_stream`, with the samples left in the file."""
    counts = _tally_in(path)
    return SampleFile(path, sum(map(len, _stream(path)))) if counts is None else counts


def read_stream(path: Path) -> Samples | Tally:
    """All whole chunks of a stream, whether or not it has an end: a torn tail is left out; or the counts, where a long
    run kept those.

    Raises LoadTestError where the file is missing or is no sample stream at all.
    """
    counts = _tally_in(path)
    return Samples.join(list(_stream(path))) if counts is None else counts


def _tally_in(path: Path) -> Tally | None:
    import pyarrow as pa

    with _readable(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return None
        stream = pa.ipc.open_stream(file)
        return _tally_from(stream.read_all()) if _is_tally(stream.schema) else None


def _stream(path: Path) -> Iterator[Samples]:
    """The whole chunks, in the order in which they were written."""
    import pyarrow as pa

    with _readable(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return
        stream = pa.ipc.open_stream(file)
        if stream.schema != _schema():
            raise LoadTestError(f"{path} holds no samples of a load test. Run the load test again.")
        while True:
            try:
                batch = stream.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                return
            yield _from_columns(batch)


@contextmanager
def _readable(path: Path) -> Iterator[IO[bytes]]:
    """A file of samples. Raises LoadTestError where it, or what is done with it, fails."""
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            yield file
    except (OSError, KeyError, IndexError, ValueError, pa.ArrowException) as error:
        raise LoadTestError(f"The samples {path} could not be read ({error}). Run the load test again.") from error


def _from_columns(table: Any) -> Samples:
    return Samples(
        *(
            np.asarray(table.column(column.name).to_numpy(zero_copy_only=False), dtype=kind)
            for column, kind in zip(fields(Samples), _KINDS, strict=True)
        )
    )


def write_parquet(samples: Samples | SampleFile | Tally, path: Path) -> None:
    """Write the samples compressed, under a temporary name first. Raises LoadTestError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(samples, Samples | SampleFile):
        schema, repeated = _schema(), ["status", "worker"]
        tables: Iterable[Any] = (pa.Table.from_batches([_batch(chunk)]) for chunk in samples.chunks())
    else:
        counted = _tally_table(samples)
        schema, repeated, tables = counted.schema, ["table"], [counted]
    encodings = {name: "DELTA_BINARY_PACKED" for name in schema.names if name not in repeated}
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": repeated, "column_encoding": encodings}
    with _whole_file(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        for table in tables:
            writer.write_table(table)


def read_parquet(path: Path) -> Samples | Tally:
    """Read what `write_parquet` wrote. Raises LoadTestError where it is missing or damaged."""
    import pyarrow.parquet as pq

    with _readable(path) as file:
        table = pq.read_table(file)
        if _is_tally(table.schema):
            return _tally_from(table)
        return _from_columns(table.combine_chunks())
