"""Real A/A studies: configurations that cannot differ, compared on the real Triton as any others.

    python -m benchmarks.equal [--rounds 20] [--duration 1.5] [--out FILE]

A round is one whole study: the baseline (max_batch_size 32) and 31, 30 and 29 with 4 clients and no queue delay, so
that no batch can ever come near the maximum; every turn is a real reload. A verdict of better or worse is a wrong one.
"""

from __future__ import annotations

import sys
import threading
import time

from benchmarks.command import Options, run, say
from benchmarks.served import settings_in, triton_with_mnist
from benchmarks.tables import Report, Table
from tritune import study_ask, study_result, worker
from tritune.plan import JobKind
from tritune.store import Store
from tritune.study_plan import LoadSpace, SearchSpace, StudyPlan

ROUNDS = 4
WRONG = ("better", "worse")


def plan(duration_s: float, seed: int) -> StudyPlan:
    """Four configurations that differ in a limit that is never reached."""
    return StudyPlan(
        "mnist",
        space=SearchSpace(max_batch_size=(31, 30, 29)),
        loads=LoadSpace(concurrency=(4,)),
        rounds=ROUNDS,
        duration_s=duration_s,
        warmup_s=0.4,
        seed=seed,
    )


def measure(options: Options) -> Report:
    """`options.rounds` studies, one after another on one server."""
    rows, wrong = [], 0
    with triton_with_mnist(options.folder, say):
        settings = settings_in(options.folder)
        store = Store.of(settings)
        for number in range(1, options.rounds + 1):
            asked, _ = study_ask.prepare(settings, plan(options.duration_s, time.time_ns() % 2**31))
            store.insert_job(JobKind.SWEEP, asked)
            job = store.claim("benchmark")
            if job is None:
                break
            worker._do(worker.Context(settings, store, job, "benchmark"), threading.Event())
            job = store.job(job.id)
            found = study_result.document(job, store.trials(study_id=f"s{job.id}"))
            verdicts = [row["verdict"] for row in found["comparisons"]]
            is_wrong = any(verdict in WRONG for verdict in verdicts)
            wrong += is_wrong
            ratios = ", ".join(f"{row['throughput_ratio']['value']:.3f}" for row in found["comparisons"])
            rows.append((str(number), str(found["rounds"]["done"]), ratios, "wrong" if is_wrong else "no difference"))
            say(f"study {number}/{options.rounds}: ratios {ratios}; {verdicts}; {wrong} wrong so far")
        store.close()
    header = ("study", "rounds", "throughput ratios to the baseline", "verdict")
    note = f"{wrong} of {len(rows)} real A/A studies had a wrong verdict (at most 3 of 20 are allowed)."
    return Report("equal", (Table("Real A/A studies", header, tuple(rows)),), (note,), {"wrong": float(wrong)}, [])


if __name__ == "__main__":
    sys.exit(run(measure, __doc__, rounds=20, duration_s=1.5))
