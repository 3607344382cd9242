"""Which configurations the next round measures, asked of Optuna (TPE): the study's own readings are told it each time.

The store is the truth: every call builds the sampler's knowledge anew from the finished readings, so that nothing is
lost by a kill and the same seed and readings give the same answer. A shared study also lies in Optuna's own tables, in
which machines see each other's readings and what the others are measuring.

Belongs here: what Optuna is told and asked. Never: which combinations exist (study_space), verdicts, budgets.

Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization; Ozaki et al. 2022, multiobjective TPE; the
documents of optuna.samplers.TPESampler.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import random
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tritune import knobs
from tritune.errors import InputError, StoreError
from tritune.evidence import MEASURE, Reading
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration
from tritune.study_plan import Metric, Objective, StudyPlan
from tritune.study_space import ASKED, Candidate

if TYPE_CHECKING:
    import optuna

TRIES = 25
"""How often Optuna is asked for one more configuration before the nearest one that exists is taken."""
BELOW = -1e3
"""Where the scores of configurations that miss a limit begin; TPE looks at the order of scores only."""
STARTUP = 2 * ASKED
SCHEMA = "optuna"
"""Of Optuna's tables in PostgreSQL: two of them have the names of Tritune's."""

Params = dict[str, str]


def next_candidates(
    plan: StudyPlan,
    candidates: Sequence[Candidate],
    loads: Sequence[LoadPlan],
    readings: Iterable[Reading],
    *,
    round: int,
    storage_url: str,
    out: Collection[int] = (),
    owner: str | None = None,
) -> tuple[int, ...]:
    """The numbers of the candidates of one round: the baseline, the best so far, and what Optuna asks for.

    `out` are measured no further. With `plan.share` the Optuna study of that name, beside the database at
    `storage_url`, is filled and read; `owner` is what this installation calls itself there (the machine's name).
    Raises InputError where the shared study is of another space, StoreError where its database cannot be used.
    """
    left = [candidate.number for candidate in candidates[1:] if candidate.number not in out]
    if len(left) <= ASKED and plan.share is None:
        return (0, *left)
    grid = _Grid.of(candidates)
    told = _observations(plan.objective, loads, list(readings), grid)
    if plan.share is None:
        return (0, *_ask(plan, grid, told, [], set(left), round))
    with _shared(plan, grid, storage_url, owner or platform.node()) as shared:
        others = shared.exchange(told)
        if len(left) <= ASKED:
            return (0, *left)
        chosen = _ask(plan, grid, told, others, set(left), round)
        shared.announce([grid.params[number] for number in chosen])
        return (0, *chosen)


# --- the space ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Grid:
    """The candidates as points: `axes` are the values of each knob that differs, `params` each candidate's point."""

    axes: Mapping[str, tuple[str, ...]]
    params: Mapping[int, Params]

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> _Grid:
        """The grid of all but the baseline, which is a point of it where its values are among theirs."""
        points = {candidate.number: _point(candidate.configuration) for candidate in candidates}
        varied = [point for number, point in points.items() if number]
        values = {
            name: tuple(dict.fromkeys(point[name] for point in varied if name in point))
            for name in sorted({name for point in varied for name in point})
        }
        axes = {name: found for name, found in values.items() if len(found) > 1}
        known = {
            number: {name: value for name, value in point.items() if name in axes}
            for number, point in points.items()
            if number or all(point[name] in found for name, found in values.items() if name in point)
        }
        return cls(axes, known)

    def suggest(self, trial: optuna.Trial) -> Params:
        """One point; knobs of the dynamic batcher only where that is on."""
        params: Params = {}
        for name in sorted(self.axes, key=lambda name: (name != "dynamic_batching", name)):
            if params.get("dynamic_batching") != "false" or not _is_of_batcher(name):
                params[name] = trial.suggest_categorical(name, self.axes[name])
        return params

    def distributions(self, params: Params) -> dict[str, optuna.distributions.BaseDistribution]:
        from optuna.distributions import CategoricalDistribution

        return {name: CategoricalDistribution(self.axes[name]) for name in params}

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.axes.items())).encode()).hexdigest()[:16]


def _point(configuration: Configuration) -> Params:
    """A configuration as texts that can be compared, without what means nothing in it."""
    document = configuration.to_dict()
    for name in knobs.KNOBS:
        document.setdefault(name, None)
    return {
        name: json.dumps(value)
        for name, value in document.items()
        if configuration.dynamic_batching or not _is_of_batcher(name)
    }


def _is_of_batcher(name: str) -> bool:
    knob = knobs.KNOBS.get(name)
    return name in ("preferred_batch_size", "max_queue_delay_microseconds") or (
        knob is not None and knob.needs_batching
    )


# --- what Optuna is told ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Observation:
    """One candidate in one round: its values for Optuna, and the trials that they come from."""

    candidate: int
    key: str
    values: tuple[float, ...]


def _observations(
    objective: Objective, loads: Sequence[LoadPlan], readings: Sequence[Reading], grid: _Grid
) -> list[_Observation]:
    """The finished readings, one observation a candidate, round and session, oldest first."""
    cells: dict[tuple[int, int, int], list[Reading]] = {}
    base: dict[tuple[int, int, int], Reading] = {}
    for reading in readings:
        if reading.role != MEASURE:
            continue
        cells.setdefault((reading.round, reading.session, reading.candidate), []).append(reading)
        if reading.candidate == 0:
            base[reading.round, reading.session, reading.load] = reading
    found = []
    for (round_, session, candidate), group in sorted(cells.items()):
        if candidate not in grid.params:
            continue
        pairs = [(reading, base.get((round_, session, reading.load))) for reading in group]
        values = _values(objective, loads, pairs)
        if values is not None:
            key = " ".join(sorted(reading.trial_id for reading in group))
            found.append(_Observation(candidate, key, values))
    return found


def _values(
    objective: Objective, loads: Sequence[LoadPlan], pairs: Sequence[tuple[Reading, Reading | None]]
) -> tuple[float, ...] | None:
    """Without a limit: mean log throughput and log P99 over the loads, against the baseline of the same round, which
    takes out how fast the machine is at that time. With one: the best load's score, larger is better."""
    if not _has_limit(objective):
        means = [
            _mean([_log(mine, base, metric) for mine, base in pairs]) for metric in (Metric.THROUGHPUT, Metric.P99)
        ]
        known = tuple(mean for mean in means if mean is not None)
        return known if len(known) == len(means) else None
    scores = [_score(objective, objective.metric(loads[mine.load]), mine, base) for mine, base in pairs]
    scored = [score for score in scores if score is not None]
    return (max(scored),) if scored else None


def _score(objective: Objective, metric: Metric, mine: Reading, base: Reading | None) -> float | None:
    """Larger is better; below every other where a limit is missed, by how much it is missed."""
    missed = 0.0
    if objective.p99_ms is not None:
        if mine.p99_ms is None:
            return None
        over = math.log(mine.p99_ms / objective.p99_ms) if mine.p99_ms > 0 else 0.0
        missed += max(over, 0.1 if mine.p99_at_least else 0.0, 0.0)
    if objective.min_throughput_ips is not None:
        if mine.throughput_ips is None:
            return None
        if mine.throughput_ips < objective.min_throughput_ips:
            missed += math.log(objective.min_throughput_ips / max(mine.throughput_ips, 1e-9))
    if missed:
        return BELOW - missed
    gain = _log(mine, base, metric)
    return -gain if gain is not None and metric is Metric.P99 else gain


def _has_limit(objective: Objective) -> bool:
    return objective.p99_ms is not None or objective.min_throughput_ips is not None


def _log(mine: Reading, base: Reading | None, metric: Metric) -> float | None:
    """The natural logarithm of a reading's number over the baseline's, alone where that has none."""
    value = _number(mine, metric)
    if value is None:
        return None
    other = _number(base, metric) if base is not None else None
    return math.log(value / (other or 1.0))


def _number(reading: Reading, metric: Metric) -> float | None:
    value = reading.throughput_ips if metric is Metric.THROUGHPUT else reading.p99_ms
    return value if value is not None and value > 0 else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _best(told: Sequence[_Observation], among: Collection[int]) -> int | None:
    """The candidate with the best mean so far; of two goals, the ratio of both."""
    scores: dict[int, list[float]] = {}
    for seen in told:
        if seen.candidate in among:
            scores.setdefault(seen.candidate, []).append(
                seen.values[0] - seen.values[1] if len(seen.values) > 1 else seen.values[0]
            )
    return max(scores, key=lambda number: (statistics.fmean(scores[number]), -number), default=None)


# --- asking ---------------------------------------------------------------------------------------------------------


def _ask(
    plan: StudyPlan,
    grid: _Grid,
    told: Sequence[_Observation],
    others: Sequence[optuna.trial.FrozenTrial],
    left: set[int],
    round_: int,
) -> list[int]:
    """ASKED different candidates of `left`: the best so far, then what TPE asks for."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seed = int.from_bytes(hashlib.sha256(f"{plan.seed}/{round_}".encode()).digest()[:4], "big")
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    study = optuna.create_study(directions=_directions(plan.objective), sampler=sampler)
    study.add_trials([_frozen(grid, seen) for seen in told])
    study.add_trials(others)
    numbers = {_key(params): number for number, params in grid.params.items()}
    draw = random.Random(seed)
    best = _best(told, left)
    chosen = [] if best is None else [best]
    while len(chosen) < ASKED:
        free = left.difference(chosen)
        params: Params = {}
        for _ in range(TRIES):
            trial = study.ask()
            params = grid.suggest(trial)
            if numbers.get(_key(params)) in free:
                break
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        found = numbers.get(_key(params))
        chosen.append(found if found in free and found is not None else _nearest(grid, params, sorted(free), draw))
    return chosen


def _nearest(grid: _Grid, params: Params, free: Sequence[int], draw: random.Random) -> int:
    """The candidate that shares the most values with a point that cannot be measured (again)."""
    shared = {number: sum(grid.params[number].get(name) == value for name, value in params.items()) for number in free}
    most = max(shared.values())
    return draw.choice([number for number, count in shared.items() if count == most])


def _directions(objective: Objective) -> list[Literal["minimize", "maximize"]]:
    return ["maximize"] if _has_limit(objective) else ["maximize", "minimize"]


def _frozen(grid: _Grid, seen: _Observation) -> optuna.trial.FrozenTrial:
    import optuna

    params = grid.params[seen.candidate]
    return optuna.trial.create_trial(
        values=list(seen.values),
        params=params,
        distributions=grid.distributions(params),
        user_attrs={"trials": seen.key},
    )


def _key(params: Params) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(params.items()))


# --- several machines -------------------------------------------------------------------------------------------------


@contextmanager
def _shared(plan: StudyPlan, grid: _Grid, storage_url: str, owner: str) -> Iterator[_Shared]:
    """The shared study of a plan, made where there is none. Raises InputError, StoreError."""
    import optuna
    import sqlalchemy.exc

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = f"{grid.fingerprint()} {' '.join(_directions(plan.objective))}"
    name, storage = str(plan.share), None
    try:
        storage = _storage(storage_url)
        study = optuna.create_study(
            storage=storage, study_name=name, directions=_directions(plan.objective), load_if_exists=True
        )
        if "space" not in study.user_attrs:
            study.set_user_attr("space", space)
        if study.user_attrs["space"] != space:
            raise InputError(
                f"The shared search {name} varies other knobs or has another objective than this plan. Use the same "
                "plan on every machine, or another name."
            )
        yield _Shared(study, grid, owner)
    except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(
            f"The shared search {name} could not be used: {said}. Is TRITUNE_DATABASE_URL reachable?"
        ) from error
    finally:
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()


@dataclass(frozen=True, slots=True)
class _Shared:
    """An Optuna study that several machines fill."""

    study: optuna.Study
    grid: _Grid
    owner: str

    def exchange(self, told: Sequence[_Observation]) -> list[optuna.trial.FrozenTrial]:
        """Add this study's readings that are not there yet, and end what it had announced; returns what the others
        have measured or are measuring."""
        import optuna

        trials = self.study.get_trials(deepcopy=False)
        known = {trial.user_attrs.get("trials") for trial in trials}
        for trial in trials:
            if trial.state is optuna.trial.TrialState.RUNNING and trial.user_attrs.get("owner") == self.owner:
                with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
                    self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        self.study.add_trials([_frozen(self.grid, seen) for seen in told if seen.key not in known])
        ours = {seen.key for seen in told}
        useful = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.RUNNING)
        return [
            trial
            for trial in trials
            if trial.state in useful
            and trial.user_attrs.get("trials") not in ours
            and not (trial.state is optuna.trial.TrialState.RUNNING and trial.user_attrs.get("owner") == self.owner)
        ]

    def announce(self, points: Sequence[Params]) -> None:
        """Say what is going to be measured here, so that other machines choose something else."""
        import optuna

        self.study.add_trials(
            [
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING,
                    params=params,
                    distributions=self.grid.distributions(params),
                    user_attrs={"owner": self.owner},
                )
                for params in points
            ]
        )


def _storage(url: str) -> Any:
    """Optuna's tables beside Tritune's: a schema of their own in PostgreSQL, a file of their own beside SQLite's."""
    import optuna
    import sqlalchemy as sa

    if url.startswith("sqlite"):
        stem = url.removesuffix(".db")
        return optuna.storages.RDBStorage(f"{stem}.optuna.db", engine_kwargs={"connect_args": {"timeout": 60}})
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
    finally:
        engine.dispose()
    return optuna.storages.RDBStorage(
        url, engine_kwargs={"connect_args": {"options": f"-csearch_path={SCHEMA}"}, "pool_pre_ping": True}
    )
