"""A study from its plan to its last round: what the worker does for a `sweep` job.

Every round measures every configuration that is still in once, in a random order that is seeded. The rows of a round
are inserted when it begins, so that leaving out, stopping and searching are functions of what is stored. Nothing else
has to survive: after a kill the same rows go on.

Belongs here: the order of these steps. Never: which combinations exist (study_space), what readings say (verdicts), how
one trial is made (trial), how configurations take turns (turns, side_by_side).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritune import (
    model_config,
    servers,
    side_by_side,
    study_ask,
    study_result,
    study_space,
    trial,
    variants,
    verdicts,
)
from tritune.errors import InputError, LoadTestError, ServerDownError, ServerError, TritonRefusedError, TrituneError
from tritune.load_plan import LoadPlan
from tritune.plan import JobState, TrialState
from tritune.servers import ServerKind, ServerState
from tritune.settings import Settings
from tritune.store import Cell, Job, Store, Trial
from tritune.study_plan import SearchMethod, StudyPlan
from tritune.study_space import Candidate
from tritune.turns import Turns, put_back

ATTEMPTS = 2
"""How often a cell of a round is tried where its generator or the server gave up."""
RESTARTS = 1
"""How often a study starts a server anew that died; after that it is interrupted."""
RESTARTED = "server_restarted"
LOST = "worker lost"
ALL = 1_000_000

Where = tuple[int, int]
"""A cell: (candidate, load)."""


def run(context: trial.Context) -> Mapping[str, Any]:
    """Measure round after round until the study stops; returns {"stopped", …}. What was served before is served again.

    Raises trial.TrialEnded where it was cancelled, interrupted or failed; finished trials are kept.
    """
    store, job = context.store, context.job
    if (asked := study_ask.brought_up_to_date(context.settings, store, job)) is not None:
        if asked["base_config"] != job.payload["base_config"]:
            changed = (
                f"What {asked['model']} serves was changed since this study was asked for. What it found is compared."
            )
            store.note_job(job.id, "found_anew", changed)
        store.change_payload(job.id, asked)
        context.job = store.job(job.id)
    running = _Running(context)
    try:
        return running.to_the_end()
    finally:
        if said := running.turns.put_back():
            context.store.note_job(context.job.id, study_ask.NOT_PUT_BACK, said)
        running.tidy_rows()


def tidy(settings: Settings, store: Store, job: Job) -> None:
    """After a worker was lost: what it left on the server goes, and what was found there is served again."""
    if said := put_back(settings, job.payload["model"], job.payload.get("found")):
        store.note_job(job.id, study_ask.NOT_PUT_BACK, said)


class _Running:
    """One study while a worker does it."""

    def __init__(self, context: trial.Context) -> None:
        self.context, self.store, self.job = context, context.store, context.job
        asked = context.job.payload
        self.plan = StudyPlan.from_dict(asked["plan"])
        self.candidates = [Candidate.from_dict(document) for document in asked["candidates"]]
        self.loads = [LoadPlan.from_dict(document) for document in asked["loads"]]
        base = model_config.parse(asked["base_config"])
        configs = [model_config.change(base, c.change) if c.number else base for c in self.candidates]
        self.turns = Turns(context.settings, self.plan.model, configs, asked.get("found"))
        self.begun = time.monotonic()
        self.trials: list[Trial] = []
        self.read()
        done = [made for made in self.trials if made.state is TrialState.FINISHED]
        self.earlier_s = sum(_took_s(made) for made in done)

    def read(self) -> None:
        """The study's rows, oldest first."""
        self.trials = list(reversed(self.store.trials(study_id=f"s{self.job.id}", limit=ALL)))

    # --- rounds ---------------------------------------------------------------------------------------------------

    def to_the_end(self) -> Mapping[str, Any]:
        self.begin()
        while True:
            self.read()
            number = max((made.round for made in self.trials), default=0)
            waiting = [made for made in self.trials if made.state is TrialState.WAITING]
            if waiting and (stop := self.budget_spent()):
                self.store.end_waiting_trials(self.job.id, reason=stop)
                return self.result(stop)
            if waiting:
                self.measure(waiting[0], number, len(waiting))
                continue
            if again := self.to_repeat(number):
                self.insert(number, again)
                continue
            if not number and self.trials:
                self.decide()
            if number:
                settled = self.settle(number)
                if settled.stop or number >= self.plan.rounds:
                    return self.result(settled.stop or f"All {self.plan.rounds} rounds are measured.")
                out: Iterable[Where] = settled.out
            else:
                out = ()
            if stop := self.budget_spent():
                return self.result(stop)
            self.begin_round(number + 1, set(out))

    def settle(self, number: int) -> verdicts.Settled:
        return study_result.settle(self.job, self.trials, number)

    def result(self, stopped: str) -> Mapping[str, Any]:
        return {"stopped": stopped, "spent_s": round(self.spent_s(), 1), "reload_s": self.turns.reload_s[-50:]}

    def begin_round(self, number: int, out: set[Where]) -> None:
        """Insert a round's rows: candidates in a random order, each with its loads; the first cell again at the end."""
        gone = out | self.given_up()
        chosen = [c.number for c in self.candidates]
        if self.plan.search is SearchMethod.OPTUNA:
            from tritune import optuna_search

            self.context.progress("Asking Optuna for the next configurations")
            chosen = list(
                optuna_search.next_candidates(
                    self.plan,
                    self.candidates,
                    self.loads,
                    study_result.readings(self.trials),
                    round=number,
                    storage_url=self.context.settings.database_url,
                    owner=self.context.settings.home,
                    out=[c for c in chosen if all((c, load) in gone for load in range(len(self.loads)))],
                )
            )
        draw = random.Random(f"{self.plan.seed}/{number}")
        draw.shuffle(chosen)
        cells: list[Cell] = []
        for candidate in chosen:
            loads = [load for load in range(len(self.loads)) if (candidate, load) not in gone]
            draw.shuffle(loads)
            cells += [Cell(candidate, load) for load in loads]
        if len(cells) > 1:
            cells.append(Cell(cells[0].candidate, cells[0].load, "drift"))
        self.insert(number, [(cell, 1) for cell in cells])

    def insert(self, number: int, cells: Sequence[tuple[Cell, int]]) -> None:
        rows = []
        for cell, attempt in cells:
            # One seed a round: every configuration gets the same arrivals and payloads.
            load = replace(self.loads[cell.load], seed=(self.plan.seed + number) % 2**63)
            rows.append((load, self.candidates[cell.candidate].configuration, cell, number, attempt))
        self.store.insert_trials(self.job.id, rows)

    # --- side by side -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Serve as it was decided, or (before the first round) insert the rows of the A/A that decides it."""
        notes = [note for note in self.job.notes if note["code"] == side_by_side.CODE]
        if notes and not notes[-1].get("good"):
            return
        if not notes and not self.trials and side_by_side.wanted(self.plan, len(self.candidates)):
            if why := variants.possible(self.context.settings, self.plan.model, len(self.candidates)):
                self.store.note_job(self.job.id, side_by_side.CODE, f"Configurations are reloaded in turn: {why}.")
                return
            self.insert(0, [(cell, 1) for cell in side_by_side.rows(0)])
        elif not notes and not any(made.round == 0 for made in self.trials):
            return
        self.turns.side_by_side()

    def decide(self) -> None:
        """After the A/A: side by side, or in turn."""
        good, said = side_by_side.judge(self.trials)
        self.store.note_job(self.job.id, side_by_side.CODE, said, good=good)
        if not good:
            self.turns.in_turn()

    # --- what did not go well -----------------------------------------------------------------------------------------

    def to_repeat(self, number: int) -> list[tuple[Cell, int]]:
        """Cells of a round that were tried and have no result yet, and may be tried again, with the next attempt."""
        again: dict[Cell, int] = {}
        finished: Counter[Cell] = Counter()
        wanted, given_up = Counter(side_by_side.rows(0)), self.given_up()
        for made in self.trials:
            if made.round != number or made.cell is None:
                continue
            if made.state is TrialState.FINISHED:
                finished[made.cell] += 1
            else:
                again[made.cell] = made.attempt + 1
        return [
            (cell, attempt)
            for cell, attempt in again.items()
            if (cell.candidate, cell.load) not in given_up
            for _ in range(max(wanted[cell], 1) - finished[cell])
        ]

    def given_up(self) -> set[Where]:
        """Cells that are measured no further: refused by Triton, or failed too often in one round."""
        failed: dict[tuple[int, Cell], int] = {}
        gone: set[Where] = set()
        begun = self.job.started_at or 0.0
        for made in self.trials:
            if made.cell is None or made.state is not TrialState.FAILED or (made.error or "").startswith(LOST):
                continue
            if made.cell.candidate == 0 and (made.finished_at or 0.0) < begun:
                continue  # that ended the study, which was resumed
            if made.provenance.get("refused"):
                gone |= {(made.cell.candidate, load) for load in range(len(self.loads))}
            key = (made.round, made.cell)
            failed[key] = failed.get(key, 0) + 1
            if failed[key] >= ATTEMPTS:
                gone.add((made.cell.candidate, made.cell.load))
        return gone

    def tidy_rows(self) -> None:
        """A cancelled study leaves no waiting rows; an interrupted one goes on with them."""
        if self.store.job(self.job.id).cancel_requested:
            self.store.end_waiting_trials(self.job.id)

    # --- one trial ----------------------------------------------------------------------------------------------------

    def measure(self, row: Trial, number: int, waiting: int) -> None:
        """Serve, warm up, measure one row. Raises trial.TrialEnded where the study cannot go on."""
        try:
            trial.check_disk(self.context.settings, row.plan)
        except InputError as full:
            raise self.interrupted(str(full)) from full
        if row.cell is None or not self.store.claim_trial(row.trial_id):
            return
        cell = row.cell
        if (cell.candidate, cell.load) in self.given_up():
            self.store.finish_trial(row.trial_id, TrialState.CANCELLED, error="Its configuration was left out.")
            return
        candidate = self.candidates[cell.candidate]
        part = self.part(row, candidate, number, waiting)
        try:
            part.progress("Taking its turn")
            if cell.role == side_by_side.ALONE:
                self.turns.alone(cell.candidate)
            elif cell.role == side_by_side.TOGETHER:
                self.turns.together(part.progress)
            served_as = self.turns.serve(cell.candidate, row.plan, part.progress)
            trial.run(
                part,
                row.plan,
                labels={},
                note="",
                row=trial.Row(row.trial_id, candidate.configuration, served_as),
            )
        except trial.TrialEnded as ended:
            if ended.state is JobState.CANCELLED:
                raise
            cause = ended.__cause__
            self.after(cause if isinstance(cause, TrituneError) else ended, cell)
        except trial.Cancelled:
            self.store.finish_trial(row.trial_id, TrialState.CANCELLED)
            raise
        except TrituneError as error:
            refused = isinstance(error, TritonRefusedError | InputError)
            provenance = {"refused": True} if refused else {}
            self.store.finish_trial(row.trial_id, TrialState.FAILED, error=str(error), provenance=provenance)
            self.after(error, cell)
        except BaseException:
            self.store.finish_trial(row.trial_id, TrialState.FAILED, error="The trial ended unexpectedly.")
            raise

    def after(self, error: Exception, cell: Cell) -> None:
        """What follows a trial that failed. Raises trial.TrialEnded where the study cannot go on."""
        said = str(error)
        if isinstance(error, ServerDownError) or not self.server_answers():
            self.restart(said)
        elif isinstance(error, TritonRefusedError | InputError):
            self.store.note_job(self.job.id, "refused", f"{self.candidates[cell.candidate].label}: {said}")
            self.turns.lost()
        elif not isinstance(error, LoadTestError | ServerError):
            raise self.interrupted(said)
        self.read()
        if (0, cell.load) in self.given_up():
            raise trial.TrialEnded(
                JobState.FAILED,
                f"The baseline could not be measured: {said}",
                self.result("The baseline could not be measured."),
            )

    def interrupted(self, said: str) -> trial.TrialEnded:
        return trial.TrialEnded(
            JobState.INTERRUPTED,
            f"{said} `tritune study resume s{self.job.id}` goes on.",
            self.result("It was interrupted."),
        )

    def server_answers(self) -> bool:
        try:
            return servers.connect(self.context.settings).is_live()
        except ServerError:
            return False

    def restart(self, said: str) -> None:
        """Start a server anew that died, once a study; raises trial.TrialEnded where that is not ours to do."""
        settings = self.context.settings
        try:
            before = servers.settled(settings)  # somebody may just be stopping it
        except ServerError as error:
            raise self.interrupted(f"{error} When it is back,") from error
        notes = [note for note in self.store.job(self.job.id).notes if note["code"] == RESTARTED]
        if before.kind is ServerKind.REMOTE:
            raise self.interrupted(f"{said} It is started by somebody else. When it is back,")
        if before.kind is None:
            raise self.interrupted("The server was stopped during the study. When it is started again,")
        if len(notes) >= RESTARTS:
            raise self.interrupted(f"{said} It had been started anew once already. When it is back,")
        self.store.note_job(self.job.id, RESTARTED, f"The server ended during the study and was started anew. {said}")
        self.turns.lost()
        if before.state is not ServerState.READY:
            try:
                servers.restart(settings, progress=self.context.progress)
            except ServerError as error:
                raise self.interrupted(f"{error} When it is back,") from error

    # --- time ---------------------------------------------------------------------------------------------------------

    def spent_s(self) -> float:
        return self.earlier_s + time.monotonic() - self.begun

    def budget_spent(self) -> str | None:
        """A sentence where the budget does not last for another trial."""
        if self.plan.budget_s is None or self.spent_s() + self.trial_s() <= self.plan.budget_s:
            return None
        return f"The budget of {study_space.duration_words(self.plan.budget_s)} was spent."

    def trial_s(self) -> float:
        """How long a trial of this study takes, seconds."""
        took = [_took_s(made) for made in self.trials[-50:] if made.state is TrialState.FINISHED]
        return sum(took) / len(took) if took else self.plan.warmup_s + self.plan.duration_s + study_space.OVERHEAD_S

    def part(self, row: Trial, candidate: Candidate, number: int, waiting: int) -> trial.Part:
        """The context of one trial, and what the page shows of the study meanwhile."""
        rows = [made for made in self.trials if made.round == number]
        a_round = max(len(rows), 1)
        later = (self.plan.rounds - number) * a_round
        done = sum(1 for made in self.trials if made.state is TrialState.FINISHED)
        total = max(done + waiting + later, 1)
        cell = row.cell
        study = {
            "round": number,
            "rounds": self.plan.rounds,
            "trial_id": row.trial_id,
            "candidate": candidate.number,
            "load": cell.load if cell else 0,
            "done": done,
            "total": total,
            "left_s": round(self.trial_s() * (waiting + later), 1),
        }
        what = f"Round {number} of {self.plan.rounds}" if number else "Whether side by side is fair"
        head = f"{what}, trial {a_round - waiting + 1} of {a_round}"
        return trial.Part(self.context, head, lambda fraction: (done + fraction) / total, study=study)


def _took_s(made: Trial) -> float:
    """From its begin to its end, seconds."""
    return max((made.finished_at or made.created_at) - made.created_at, 0.0)
