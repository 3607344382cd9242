"""The benchmarks' pure parts: laws and their truth, ratios, the table of what must be reached, the written page."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from benchmarks.__main__ import markdown
from benchmarks.clients import Reading
from benchmarks.laws import Law, ServerLog, error_percent, quantile_ms, truth_ns
from benchmarks.lost import of_killed
from benchmarks.tables import (
    NOT_MEASURED,
    TARGETS,
    Report,
    Table,
    number,
    order,
    ratios,
    spread,
    targets_table,
)

MS = 1_000_000


def log_of(arrived_ms: list[float], planned_ms: list[float], late_ms: list[float], started_ms: float = 0) -> ServerLog:
    arrived = (np.asarray(arrived_ms) * MS).astype(np.int64)
    planned = (np.asarray(planned_ms) * MS).astype(np.int64)
    answered = arrived + planned + (np.asarray(late_ms) * MS).astype(np.int64)
    numbers = np.arange(len(arrived), dtype=np.int64)
    return ServerLog(
        int(started_ms * MS), arrived, planned, answered, numbers, np.zeros_like(arrived), np.zeros_like(arrived)
    )


def test_a_law_is_read_from_its_text_and_nonsense_is_refused() -> None:
    assert Law.parse("bimodal:2:20:0.05") == Law("bimodal", (2.0, 20.0, 0.05))
    for text in ("fixed", "fixed:1:2", "uniform:1:2", "stall:1"):
        with pytest.raises(ValueError, match="no latency law"):
            Law.parse(text)


def test_delays_follow_their_law() -> None:
    chance = random.Random(1)
    assert Law.parse("fixed:5").delay_ns(123, chance) == 5 * MS
    assert Law.parse("none").delay_ns(123, chance) == 0
    bimodal = [Law.parse("bimodal:2:20:0.25").delay_ns(0, chance) for _ in range(4000)]
    assert set(bimodal) == {2 * MS, 20 * MS}
    assert bimodal.count(20 * MS) / 4000 == pytest.approx(0.25, abs=0.03)  # 4.4 standard deviations
    lognormal = [Law.parse("lognormal:5:0.5").delay_ns(0, chance) for _ in range(4001)]
    assert np.median(lognormal) == pytest.approx(5 * MS, rel=0.05)


def test_a_stall_holds_what_comes_in_its_time_until_its_end() -> None:
    law, chance = Law.parse("stall:5:10000:1000"), random.Random(0)
    assert law.delay_ns(8_999 * MS, chance) == 5 * MS
    assert law.delay_ns(9_000 * MS, chance) == 1_005 * MS
    assert law.delay_ns(9_999 * MS, chance) == 6 * MS
    assert law.delay_ns(19_500 * MS, chance) == 505 * MS


def test_the_truth_of_a_memoryless_law_is_what_the_log_says_of_the_scheduled_requests() -> None:
    log = log_of([10, 20, 30, 40], [5, 6, 7, 8], [0.1, 0.2, 0.3, 0.4])
    schedule = np.asarray([9, 19, 29, 39], dtype=np.int64) * MS
    truth = truth_ns(Law.parse("lognormal:5:0.5"), log, schedule, 19 * MS, 39 * MS)
    assert truth.tolist() == [int(6.2 * MS), int(7.3 * MS)]


def test_without_the_whole_schedule_the_arrivals_in_the_window_count() -> None:
    log = log_of([10, 20, 30], [5, 6, 7], [0, 0, 0])
    schedule = np.asarray([9, 19, 29, 39], dtype=np.int64) * MS
    assert truth_ns(Law.parse("fixed:5"), log, schedule, 19 * MS, 39 * MS).tolist() == [6 * MS, 7 * MS]


def test_a_client_that_holds_requests_back_does_not_change_the_truth_of_a_stall() -> None:
    law = Law.parse("stall:5:1000:500")
    schedule = np.arange(0, 1000, 100, dtype=np.int64) * MS
    sent_all = log_of([*range(0, 1000, 100)], [5] * 10, [0] * 10)
    held_back = log_of([*range(0, 500, 100), 1000], [5] * 6, [0] * 6)
    expected = [5 * MS] * 5 + [(1000 - at + 5) * MS for at in range(500, 1000, 100)]
    for log in (sent_all, held_back):
        assert truth_ns(law, log, schedule, 0, 1000 * MS).tolist() == expected


def test_requests_that_were_never_answered_are_no_part_of_the_truth() -> None:
    log = log_of([10, 20, 30], [5, 6, 7], [0, 0, 0])
    log.answered_ns[2] = -1
    assert len(log.answered()) == 2
    truth = truth_ns(Law.parse("fixed:5"), log, np.asarray([0]), 0, 40 * MS)
    assert truth.tolist() == [5 * MS, 6 * MS]


def test_a_servers_log_comes_back_from_its_bytes_in_order_of_arrival() -> None:
    rows = [[300, 5, 306, 2, 1], [100, 7, 108, 1, 0]]
    data = np.asarray([50, 3, 0, 400, 0, *rows[0], *rows[1]], dtype=np.int64).tobytes()
    log = ServerLog.from_bytes(data)
    assert log.started_ns == 50
    assert log.arrived_ns.tolist() == [100, 300]
    assert log.late_ns.tolist() == [1, 1]
    assert log.connection.tolist() == [1, 2]
    assert log.closed_ns.tolist() == [0, 400, 0]


def test_percentiles_and_errors() -> None:
    assert quantile_ms(np.arange(1, 101, dtype=np.int64) * MS, 0.99) == 99.0
    assert np.isnan(quantile_ms(np.empty(0, dtype=np.int64), 0.5))
    assert error_percent(5.1, 5.0) == pytest.approx(2.0)
    assert error_percent(4.0, 5.0) == pytest.approx(-20.0)


def test_a_killed_workers_connections_are_those_that_closed_when_it_was_killed() -> None:
    log = log_of([1, 2, 3, 4], [1] * 4, [0] * 4)
    log.connection[:] = [0, 1, 0, 2]
    log.closed_ns[:3] = [int(3.6 * MS), 0, 2_000 * MS]
    assert of_killed(log, int(3.5 * MS), 1_000 * MS).tolist() == [True, False, True, False]


def test_rounds_rotate() -> None:
    assert [order("ABC", number_) for number_ in range(4)] == [list("ABC"), list("CAB"), list("BCA"), list("ABC")]


def test_a_ratio_is_taken_within_a_round() -> None:
    rounds = [{"a": 2.0, "b": 4.0}, {"a": 6.0}, {"a": 9.0, "b": 3.0}]
    assert ratios(rounds, "a", "b") == [0.5, 3.0]


def test_spinning_is_no_cost_of_a_request() -> None:
    reading = Reading("ours", requests=1000, cpu_ns=50 * MS, spin_ns=20 * MS, window_s=2.0)
    assert reading.cpu_us == 30.0
    assert reading.rps == 500.0
    assert reading.rps_per_core == pytest.approx(33_333.3, abs=0.1)


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (0.0, 0.27512, 27.84, 107781.4)] == ["0", "0.275", "27.8", "107,781"]
    assert number(float("nan")) == "–"
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00–3.00)"
    assert spread([]) == "–"


def test_every_target_says_reached_not_reached_or_not_measured() -> None:
    figures = {"http_to_perf_analyzer": 0.41, "grpc_to_perf_analyzer": 1.2, "lost_two_workers": 0.0}
    verdicts = {row[0]: row[3] for row in targets_table(figures).rows}
    assert len(verdicts) == len(TARGETS)
    assert verdicts["CPU per request, our HTTP / perf_analyzer HTTP"] == "**not reached**"
    assert verdicts["CPU per request, our gRPC / perf_analyzer gRPC"] == "reached; the wanted 0.9 is not"
    assert verdicts["samples lost with 2 workers"] == "reached"
    assert verdicts["CPU per request, our HTTP / wrk on the canned answer"] == NOT_MEASURED
    assert TARGETS[0].verdict(float("nan")) == NOT_MEASURED


def test_a_report_survives_its_file_and_a_missing_part_is_named() -> None:
    report = Report("lost", (Table("Samples", ("a", "b"), (("1", "2"),)),), ("a note",), {"lost_two_workers": 0.0})
    again = Report.from_dict(report.to_dict())
    assert again == dataclasses.replace(report, raw=[])
    page = markdown({"CPU": "one"}, {"lost": again, "soak": "no space"})
    assert "- CPU: one" in page
    assert "| 1 | 2 |" in page
    assert "- a note" in page
    assert "## Soak\n\nNot measured: no space" in page
