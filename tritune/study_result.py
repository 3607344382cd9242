"""A study's job and trials as the one document that `sweep`, `study show`, pages and reports read (pure).

Belongs here: what was asked, cells pooled over rounds, names, warnings about how it was measured. Never: which trials
count (study_trials), formulas (verdicts, contest, evidence), sentences (study_words), files, clocks.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritune import study_words, verdicts
from tritune.analysis import NO_VERDICT, Number, configuration_key, estimate, labels, surroundings, surroundings_differ
from tritune.doubts import MeasurementWarning
from tritune.evidence import Design, Evidence
from tritune.load_plan import LoadPlan, describe_load
from tritune.plan import JobState
from tritune.store import Cell, Job, Trial, trial_number
from tritune.study_plan import DEFAULT_ROUNDS, Metric, Objective, StudyPlan
from tritune.study_trials import by_cell, newest, reading, rounds_done, sessions_of
from tritune.study_trials import readings as readings
from tritune.verdicts import Best, Comparison, Ratio, Settled, Verdict

Document = dict[str, Any]
_NOT_IN_TURNS = "these trials were not interleaved in rounds"


def settle(job: Job, trials: Sequence[Trial], round: int) -> Settled:
    """Which cells are measured no further after `round`, and why the study stops, where it does."""
    asked = _Asked.of(job, trials)
    return verdicts.settle(asked.design, readings(trials), round, stop_early=asked.stop_early)


def document(job: Job, trials: Sequence[Trial]) -> Document:
    """All that is known about a study, whatever its state (tritune study show --json prints it)."""
    ordered = sorted(trials, key=lambda trial: trial_number(trial.trial_id))
    asked = _Asked.of(job, ordered)
    placed = asked.placed(ordered)
    counted = newest(placed)
    sessions = sessions_of(counted) if asked.is_interleaved else {trial.trial_id: n for n, trial in enumerate(counted)}
    read = [
        reading(trial, trial.cell, sessions[trial.trial_id])
        for trial in counted
        if trial.cell and (trial.round > 0 or not asked.is_interleaved)
    ]
    evidence = Evidence.of(asked.design, read)
    done = rounds_done(placed) if asked.is_interleaved else 0
    settled = verdicts.settle(asked.design, read, done, stop_early=asked.stop_early)
    compared = verdicts.compare(asked.design, evidence)
    if not asked.is_interleaved:
        compared = tuple(replace(row, verdict=Verdict.NOT_MEASURED, reason=_NOT_IN_TURNS) for row in compared)
    best, reason = verdicts.best(asked.design, evidence) if asked.is_interleaved else (None, NO_VERDICT)
    drifts = verdicts.drift(read)
    return {
        "study_id": f"s{job.id}",
        "kind": str(job.kind),
        "state": str(job.state),
        "error": job.error,
        "progress": dict(job.progress),
        "model": asked.model,
        "title": asked.title,
        "note": job.payload.get("note", ""),
        "labels": dict(job.payload.get("labels") or {}),
        "imported": asked.is_imported,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "plan": asked.plan_document,
        "candidates": [asked.candidate(number) | _fate(job, asked, settled, number) for number in asked.names],
        "loads": [
            {"load": number, "describe": describe_load(plan.load()), "plan": plan.load()}
            for number, plan in enumerate(asked.design.loads)
        ],
        "rounds": {"planned": asked.design.rounds, "done": done},
        "left_out": [dict(row) for row in job.payload.get("left_out") or ()],
        "baseline": asked.candidate(asked.design.baseline) if asked.names else None,
        "trials": [trial.to_dict() for trial in ordered],
        "cells": [_cell(evidence, settled, cell, group) for cell, group in sorted(by_cell(counted).items())],
        "comparisons": [_comparison(asked, row) for row in compared],
        "best": _best(asked, best),
        "reason": reason,
        "stopped": _stopped(job, settled, done, asked.design.rounds),
        "drift": [
            {
                "round": row.round,
                "candidate": row.candidate,
                "load": row.load,
                "throughput_ratio": row.throughput_ratio,
                "p99_ratio": row.p99_ratio,
            }
            for row in drifts
        ],
        "notes": [dict(note) for note in job.notes],
        "warnings": [
            warning.to_dict() for warning in (*_warnings(asked, counted, sessions), *study_words.drift_warnings(drifts))
        ],
    }


# --- what was asked --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """A study's payload, or what its trials say where it has none (an import, load tests)."""

    model: str
    title: str
    plan_document: Document | None
    design: Design
    stop_early: bool
    names: Mapping[int, Document]
    is_interleaved: bool
    is_imported: bool

    @classmethod
    def of(cls, job: Job, trials: Sequence[Trial]) -> _Asked:
        payload = job.payload
        plan = StudyPlan.from_dict(payload["plan"]) if "candidates" in payload and payload.get("plan") else None
        if payload.get("candidates"):
            names = {int(row["number"]): dict(row) for row in payload["candidates"]}
            loads = [LoadPlan.from_dict(row) for row in payload.get("loads") or ()]
        else:
            names, loads = _names_of(trials), _loads_of(trials)
        has_cells = all(trial.cell for trial in trials)
        rounds = plan.rounds if plan else max((trial.round for trial in trials), default=DEFAULT_ROUNDS)
        design = Design(
            objective=plan.objective if plan else Objective(),
            loads=tuple(loads),
            rounds=rounds,
            baseline=int(payload.get("baseline") or 0),
            candidates=tuple(names),
            precision=plan.precision if plan else None,
            names={number: str(row.get("label") or "") for number, row in names.items()},
        )
        return cls(
            model=payload.get("model") or (plan.model if plan else trials[0].model if trials else ""),
            title=(plan.title if plan else "") or str(payload.get("title") or ""),
            plan_document=plan.to_dict() if plan else None,
            design=design,
            stop_early=bool(plan and plan.stop_early),
            names=names,
            is_interleaved=has_cells and bool(payload.get("candidates")) and payload.get("interleaved", True),
            is_imported=str(job.kind) == "import",
        )

    def placed(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials, each with a cell: where there is no plan, one that has none gets its configuration's and
        load's; elsewhere it is no part of the study's result."""
        if self.plan_document or all(trial.cell for trial in trials):
            return [trial for trial in trials if trial.cell]
        numbers = {configuration_key(trial): number for number, trial in _distinct(trials)}
        loads = {str(plan.load()): number for number, plan in enumerate(self.design.loads)}
        return [
            trial
            if trial.cell
            else replace(trial, cell=Cell(numbers[configuration_key(trial)], loads[str(trial.load)]))
            for trial in trials
            if trial.cell or str(trial.load) in loads
        ]

    def candidate(self, number: int) -> Document:
        row = self.names.get(number, {})
        return {
            "candidate": number,
            "configuration": row.get("configuration"),
            "label": row.get("label") or ("baseline" if number == self.design.baseline else f"configuration {number}"),
            "change": row.get("change"),
        }

    def named(self, number: int) -> Document:
        row = self.candidate(number)
        return {name: row[name] for name in ("candidate", "configuration", "label")}


def _distinct(trials: Sequence[Trial]) -> list[tuple[int, Trial]]:
    """The first trial of every configuration, numbered."""
    firsts: dict[str, Trial] = {}
    for trial in trials:
        firsts.setdefault(configuration_key(trial), trial)
    return list(enumerate(firsts.values()))


def _names_of(trials: Sequence[Trial]) -> dict[int, Document]:
    firsts = _distinct(trials)
    named = labels([trial for _, trial in firsts])
    return {
        number: {
            "configuration": trial.configuration.to_dict() if trial.configuration else None,
            "label": named[trial.trial_id],
        }
        for number, trial in firsts
    }


def _loads_of(trials: Sequence[Trial]) -> list[LoadPlan]:
    return list({str(trial.load): trial.plan for trial in trials}.values())


# --- the document's parts --------------------------------------------------------------------------------------------


def _cell(evidence: Evidence, settled: Settled, cell: tuple[int, int], trials: Sequence[Trial]) -> Document:
    """One cell over its rounds: geometric means with intervals, medians of the rest, counts added up."""

    def latency(name: str) -> float | None:
        return _median(estimate(trial, name).value for trial in trials)

    def server(name: str, scale: float = 1.0) -> float | None:
        shares = ((trial.measurement or {}).get("server") or {} for trial in trials)
        value = _median(share.get(name) for share in shares)
        return None if value is None else value * scale

    sizes: dict[str, int] = defaultdict(int)
    for trial in trials:
        for size, count in (((trial.measurement or {}).get("server") or {}).get("batch_sizes") or {}).items():
            sizes[size] += count
    return {
        "candidate": cell[0],
        "load": cell[1],
        "rounds": len(trials),
        "state": "out" if cell in settled.out else "in",
        "reason": settled.out.get(cell),
        "after_round": settled.after.get(cell),
        "throughput_ips": _level(evidence, cell, Metric.THROUGHPUT, trials, "throughput_ips"),
        "p99_ms": _level(evidence, cell, Metric.P99, trials, "p99"),
        "p50_ms": latency("p50"),
        "p90_ms": latency("p90"),
        "p95_ms": latency("p95"),
        "p999_ms": latency("p999"),
        "average_batch": server("average_batch"),
        "batch_sizes": dict(sorted(sizes.items(), key=lambda row: int(row[0]))),
        "queue_ms": server("queue_us", 1e-3),
        "compute_input_ms": server("compute_input_us", 1e-3),
        "compute_infer_ms": server("compute_infer_us", 1e-3),
        "compute_output_ms": server("compute_output_us", 1e-3),
        "trial_ids": [trial.trial_id for trial in trials],
    }


def _level(
    evidence: Evidence, cell: tuple[int, int], metric: Metric, trials: Sequence[Trial], name: str
) -> Document | None:
    """The geometric mean over the rounds with its 95 % interval; of one round that trial's own."""
    from scipy.special import stdtrit

    level = evidence.table(cell[1], metric).level(cell[0])
    if level is None:
        return None
    interval = None
    if math.isfinite(level.error) and level.freedom > 0 and not level.bound:
        low, high = level.interval(float(stdtrit(level.freedom, 0.975)))
        interval = [math.exp(low), math.exp(high)]
    elif len(trials) == 1:
        own: Number = estimate(trials[0], name)
        interval = None if own.low is None or own.high is None else [own.low, own.high]
    return {"value": math.exp(level.value), "ci95": interval, "at_least": bool(level.bound)}


def _median(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def _fate(job: Job, asked: _Asked, settled: Settled, number: int) -> Document:
    """Whether a candidate is still measured, left out (under every load) or kept to the end."""
    cells = [(number, load) for load in range(len(asked.design.loads))]
    if cells and all(cell in settled.out for cell in cells):
        last = max(cells, key=lambda cell: settled.after[cell])
        return {"state": "out", "reason": settled.out[last], "after_round": settled.after[last]}
    state = "kept" if job.state.is_final else "measuring"
    return {"state": state, "reason": None, "after_round": None}


def _comparison(asked: _Asked, found: Comparison) -> Document:
    return {
        **asked.named(found.candidate),
        "load": asked.design.loads[found.load].load(),
        "load_number": found.load,
        "metric": str(found.metric),
        "throughput_ratio": _ratio(found.throughput_ratio),
        "p99_ratio": _ratio(found.p99_ratio),
        "verdict": str(found.verdict),
        "reason": found.reason,
        "rounds": found.rounds,
        "more_rounds": found.more_rounds,
        "sentence": study_words.comparison_sentence(found),
    }


def _ratio(ratio: Ratio | None) -> Document | None:
    """No interval where one of its ends is not known."""
    if ratio is None:
        return None
    is_closed = ratio.low > 0 and math.isfinite(ratio.high)
    interval = [ratio.low, ratio.high] if is_closed else None
    return {"value": ratio.value, "ci95": interval, "at_least": ratio.at_least, "at_most": ratio.at_most}


def _best(asked: _Asked, found: Best | None) -> Document | None:
    if found is None:
        return None
    return {
        **_place(asked, found.candidate, found.load),
        "indistinguishable": [_place(asked, *cell) for cell in found.indistinguishable],
        "doubt": found.doubt,
    }


def _place(asked: _Asked, candidate: int, load: int) -> Document:
    return {**asked.named(candidate), "load": asked.design.loads[load].load(), "load_number": load}


def _stopped(job: Job, settled: Settled, done: int, planned: int) -> str | None:
    """Why nothing more is measured; None while it is not over."""
    if not job.state.is_final:
        return None
    if said := (job.result or {}).get("stopped"):
        return str(said)
    if job.state is JobState.FINISHED:
        return settled.stop
    return f"It was {job.state} after {done} of {planned} rounds."


# --- how it was measured ---------------------------------------------------------------------------------------------


def _warnings(asked: _Asked, trials: Sequence[Trial], sessions: Mapping[str, int]) -> Iterable[MeasurementWarning]:
    """What else than the configuration differs within the study, each once."""
    firsts: dict[tuple[str, ...], Trial] = {}
    for trial in trials:
        firsts.setdefault(surroundings(trial), trial)
    found: dict[str, MeasurementWarning] = {}
    for trial in list(firsts.values())[1:]:
        for warning in surroundings_differ(trial, trials[0]):
            if warning.code != "model_differs" or _same_version(trial, trials[0]):
                found.setdefault(str(warning.code), warning)
    yield from found.values()
    if not asked.is_interleaved:
        if trials:
            yield MeasurementWarning("not_interleaved", NO_VERDICT)
        return
    parts: dict[int, set[int]] = defaultdict(set)
    for trial in trials:
        parts[trial.round].add(sessions[trial.trial_id])
    for round, several in sorted(parts.items()):
        if len(several) > 1:
            yield MeasurementWarning(
                "interleaving_broken",
                f"Round {round} was measured in {len(several)} parts, with a long pause or on another machine between "
                "them. Only what was measured in the same part is compared; what shares no part with the baseline "
                "often enough gets no verdict. Run the study once more for more rounds.",
            )


def _same_version(one: Trial, two: Trial) -> bool:
    return one.provenance.get("model_version") == two.provenance.get("model_version")
