"""`tritune study …`: look at, resume, delete and share what was measured.

Belongs here: options, waiting, printing. Never: what the verbs do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritune.cli.frame import MAX_ROWS, MISSED, Json, say, show, study_app, verb
from tritune.cli.measure import trial_text
from tritune.load_plan import LoadPlan, describe_load
from tritune.plan import JobKind, JobState
from tritune.settings import Settings

if TYPE_CHECKING:
    from tritune.store import Job, Store, Trial

STUDIES = (JobKind.LOAD_TEST, JobKind.FIND_RATE, JobKind.SWEEP, JobKind.IMPORT)


@study_app.command("list")
@verb
def study_list(
    limit: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="How many of the newest.")] = 100,
    as_json: Json = False,
) -> None:
    """Studies, load tests and searches, newest first."""
    from tritune.store import Store

    store = Store.of(Settings.from_env())
    rows = [_row(store, job) for job in store.jobs(STUDIES, limit=limit)]
    text = "\n".join(
        f"{row['study_id']} {row['state']}: {row['model']}, "
        f"{row.get('found') or describe_load(row['load'])} {' '.join(row['trial_ids'])}".rstrip()
        for row in rows
    )
    show({"studies": rows}, as_json, text or "Nothing measured yet. `tritune load NAME --concurrency 8` makes a start.")


def _row(store: Store, job: Job) -> dict[str, Any]:
    """One line of the list; `found` is what a study or search has to say instead of a load."""
    if job.kind is JobKind.FIND_RATE:
        from tritune import rate_report

        return rate_report.row(job, store.trials(study_id=f"s{job.id}"))
    row: dict[str, Any] = {
        "study_id": f"s{job.id}",
        "kind": str(job.kind),
        "state": str(job.state),
        "error": job.error,
        "created_at": job.created_at,
        "trial_ids": [],
    }
    if job.kind is JobKind.LOAD_TEST:
        plan = LoadPlan.from_dict(job.payload["plan"])
        trial_id = (job.result or {}).get("trial_id")
        return {**row, "model": plan.model, "load": plan.load(), "trial_ids": [trial_id] if trial_id else []}
    candidates, loads = len(job.payload.get("candidates") or ()), len(job.payload.get("loads") or ())
    what = "import" if job.kind is JobKind.IMPORT else "study"
    title = f"{job.payload['title']}, " if job.payload.get("title") else ""
    found = f"{title}{what} of {candidates} configurations and {loads} load{'s' if loads != 1 else ''}"
    return {**row, "model": job.payload["model"], "load": None, "found": found}


@study_app.command("show")
@verb
def study_show(study_id: str, as_json: Json = False) -> None:
    """A study, a load test or a search with its trials."""
    from tritune.store import Store, study_number

    store = Store.of(Settings.from_env())
    job = store.job(study_number(study_id))
    made = store.trials(study_id=f"s{job.id}", limit=MAX_ROWS)
    if job.kind in (JobKind.SWEEP, JobKind.IMPORT):
        _show_study(job, made, as_json)
        return
    trials = [trial.to_dict() for trial in made]
    document = {"study_id": f"s{job.id}", "state": str(job.state), "error": job.error, "trials": trials}
    if job.kind is JobKind.FIND_RATE:
        from tritune import rate_report

        found = rate_report.document(job, made)
        show({**found, "trials": trials}, as_json, "\n".join([f"s{job.id} {job.state}", *rate_report.sentences(found)]))
        return
    text = "\n".join(trial_text(trial) for trial in trials if trial["state"] == "finished")
    show(document, as_json, f"s{job.id} {job.state}{f': {job.error}' if job.error else ''}\n{text}".rstrip())


def _show_study(job: Job, made: Sequence[Trial], as_json: bool) -> Mapping[str, Any]:
    from tritune import study_result

    document: Mapping[str, Any] = study_result.document(job, made)
    show(document, as_json, "\n".join(study_lines(document)))
    return document


def study_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """A study as a person reads it."""
    from tritune.analysis import significant

    rounds, error = document["rounds"], f": {document['error']}" if document["error"] else ""
    yield f"{document['study_id']} {document['state']}{error}"
    yield (
        f"  {document['model']}: {len(document['candidates'])} configurations, {len(document['loads'])} loads, "
        f"{rounds['done']} of {rounds['planned']} rounds. {document['stopped'] or ''}".rstrip()
    )
    if document["baseline"] is not None:
        yield f"  baseline: {document['baseline']['label']}"
    cells = {(cell["candidate"], cell["load"]): cell for cell in document["cells"]}
    sentences = {(row["candidate"], row["load_number"]): row["sentence"] for row in document["comparisons"]}
    for load in document["loads"]:
        yield f"  {load['describe']}"
        for candidate in document["candidates"]:
            cell = cells.get((candidate["candidate"], load["load"]))
            if cell is None:
                continue
            ips, p99 = ((cell[name] or {}).get("value") for name in ("throughput_ips", "p99_ms"))
            words = f"{significant(ips)}/s" if ips else "–"
            words += f", P99 {significant(p99)} ms" if p99 is not None else ", no P99"
            said = sentences.get((candidate["candidate"], load["load"]), "Baseline.")
            yield f"    {candidate['label']}: {words}. {said}"
    yield f"  {_best_line(document)}"
    for told in (*document["notes"], *document["warnings"]):
        yield f"  {told['message']}"


def _best_line(document: Mapping[str, Any]) -> str:
    best = document["best"]
    if best is None:
        return f"No best configuration: {document['reason']}"
    same = [f"{other['label']} ({describe_load(other['load'])})" for other in best["indistinguishable"]]
    others = f" Not to be told from it: {'; '.join(same)}." if same else ""
    return f"Best ({document['reason']}): {best['label']}, {describe_load(best['load'])}.{others}"


@study_app.command("cancel")
@verb
def study_cancel(study_id: str, as_json: Json = False) -> None:
    """Cancel what waits or runs."""
    from tritune.store import Store, study_number

    store = Store.of(Settings.from_env())
    store.request_cancel(study_number(study_id))
    show({"study_id": study_id, "cancel_requested": True}, as_json, f"{study_id} is asked to end.")


@study_app.command("resume")
@verb
def study_resume(study_id: str, as_json: Json = False) -> None:
    """Go on with a study that was interrupted, cancelled or has failed, and wait for its end."""
    from tritune import jobs
    from tritune.store import Store

    settings = Settings.from_env()
    store = Store.of(settings)
    wait_and_show(settings, store, jobs.resume(settings, store, study_id), as_json)


@study_app.command("delete")
@verb
def study_delete(study_id: str, as_json: Json = False) -> None:
    """Forget a study and its trials, with their samples."""
    import shutil

    from tritune.store import Store, study_number

    settings = Settings.from_env()
    gone = Store.of(settings).delete_job(study_number(study_id))
    for trial_id in gone:
        shutil.rmtree(settings.trials / trial_id, ignore_errors=True)
    show({"study_id": study_id, "deleted_trials": list(gone)}, as_json, f"{study_id} and {len(gone)} trials are gone.")


def wait_and_show(settings: Settings, store: Store, job_id: int, as_json: bool) -> None:
    """Wait for a study and print it; exit code 3 where nothing met its objective."""
    from tritune import jobs

    job = jobs.wait(settings, store, job_id, say)
    document = _show_study(job, store.trials(study_id=f"s{job.id}", limit=MAX_ROWS), as_json)
    if job.state is not JobState.FINISHED:
        say(job.error or f"This ended {job.state}.")
        raise typer.Exit(1)
    if document["best"] is None:
        raise typer.Exit(MISSED)
