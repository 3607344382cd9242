"""Samples survive whatever happens to the process that writes them."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

from loadgen.samples import (
    CHUNK,
    NEVER,
    SampleFile,
    Samples,
    SampleWriter,
    Status,
    open_stream,
    read_parquet,
    read_stream,
    write_parquet,
)
from tritune.errors import LoadTestError


def some(count: int, first: int = 0, worker: int = 0) -> Samples:
    rows = array("q")
    for number in range(first, first + count):
        rows.extend((number, number + 1, number + 1000, Status.OK if number % 3 else Status.FAILED))
    return Samples.from_packed(rows, worker)


def assert_equal(left: Samples, right: Samples) -> None:
    for name in ("intended_ns", "sent_ns", "done_ns", "status", "worker"):
        assert getattr(left, name).dtype == getattr(right, name).dtype
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


def test_what_is_written_in_chunks_is_read_back_as_one(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "s.arrow")
    for first in range(0, 50, 10):
        writer.write(some(10, first, worker=first))
    writer.close()
    assert writer.count == 50
    chunks = [some(10, first, worker=first) for first in range(0, 50, 10)]
    assert_equal(read_stream(tmp_path / "s.arrow"), Samples.join(chunks))


def test_a_growing_stream_can_be_read_before_it_ends(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "s.arrow")
    writer.write(some(7))
    assert_equal(read_stream(tmp_path / "s.arrow"), some(7))
    writer.close()


def test_a_torn_tail_costs_only_the_torn_chunk(tmp_path: Path) -> None:
    whole = tmp_path / "s.arrow"
    writer = SampleWriter(whole)
    writer.write(some(10))
    first_end = whole.stat().st_size
    writer.write(some(10, 10))
    writer.close()
    data = whole.read_bytes()
    for length in range(first_end, len(data)):
        torn = tmp_path / "torn.arrow"
        torn.write_bytes(data[:length])
        assert len(read_stream(torn)) in (10, 20)
    assert_equal(read_stream(whole), some(20))


@pytest.mark.parametrize("sizes", [(), (7, 1, 5), (CHUNK - 1, 3), (2 * CHUNK + 5, 1)])
def test_samples_that_stay_in_their_file_are_the_same_in_stretches(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    writer = SampleWriter(tmp_path / "s.arrow")
    for place, size in enumerate(sizes):
        rows = np.arange(4 * size, dtype=np.int64).reshape(-1, 4) % 100 + place
        writer.write(Samples.from_packed(rows.tobytes(), place))
    writer.close()
    opened, whole = open_stream(tmp_path / "s.arrow"), read_stream(tmp_path / "s.arrow")
    assert isinstance(opened, SampleFile)
    assert len(opened) == len(whole) == sum(sizes)
    stretches = list(opened.chunks())
    assert max(map(len, stretches), default=0) <= CHUNK
    assert_equal(Samples.join(stretches), whole)
    write_parquet(opened, tmp_path / "s.parquet")
    assert_equal(read_parquet(tmp_path / "s.parquet"), whole)


def test_an_empty_file_holds_no_samples(tmp_path: Path) -> None:
    (tmp_path / "s.arrow").touch()
    assert len(read_stream(tmp_path / "s.arrow")) == 0


@pytest.mark.parametrize("content", [None, b"not arrow at all, but long enough to be looked at"])
def test_a_missing_or_foreign_file_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "s.arrow").write_bytes(content)
    for read in (read_stream, read_parquet):
        with pytest.raises(LoadTestError, match="could not be read"):
            read(tmp_path / "s.arrow")


def test_a_full_disk_is_one_sentence_with_what_to_do() -> None:
    writer = SampleWriter(Path("/dev/full"))
    with pytest.raises(LoadTestError, match=r"No space left on device.*TRITUNE_RESULTS"):
        writer.write(some(5))
    with pytest.raises(LoadTestError, match="No space left on device"):
        writer.close()


def test_a_parquet_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LoadTestError, match="could not be written"):
        write_parquet(some(5), tmp_path / "missing" / "s.parquet")


def test_parquet_keeps_every_column(tmp_path: Path) -> None:
    samples = Samples.join([some(1000, worker=3), Samples.unsent(np.arange(5, dtype=np.int64), 1)])
    write_parquet(samples, tmp_path / "s.parquet")
    assert_equal(read_parquet(tmp_path / "s.parquet"), samples)
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]


def test_unsent_requests_have_nothing_but_their_intended_time() -> None:
    unsent = Samples.unsent(np.array([5, 9], dtype=np.int64), worker=2)
    assert unsent.intended_ns.tolist() == [5, 9]
    assert unsent.sent_ns.tolist() == unsent.done_ns.tolist() == [NEVER, NEVER]
    assert set(unsent.status.tolist()) == {Status.UNSENT}
    assert set(unsent.worker.tolist()) == {2}


def test_writing_samples_does_not_import_pandas(tmp_path: Path) -> None:
    # half a second at the first chunk would stop the sends
    code = (
        "import sys; from pathlib import Path; from array import array\n"
        "from loadgen.samples import SampleWriter, Samples\n"
        f"writer = SampleWriter(Path({str(tmp_path / 's.arrow')!r}))\n"
        "writer.write(Samples.from_packed(array('q', [1, 2, 3, 0]), 0)); writer.close()\n"
        "sys.exit('pandas' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0


def test_times_move_to_another_clock_and_what_never_happened_stays() -> None:
    samples = Samples.join([some(3, first=100), Samples.unsent(np.array([150], dtype=np.int64), 0)])
    moved = samples.earlier(50)
    assert moved.intended_ns.tolist() == [50, 51, 52, 100]
    assert moved.sent_ns.tolist() == [51, 52, 53, NEVER]
    assert moved.done_ns[-1] == NEVER
