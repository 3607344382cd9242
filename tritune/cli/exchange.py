"""`tritune study export`, `study import`: a study as a file for others, and others' files as a study.

Belongs here: options, printing. Never: formats (exports, imports).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tritune.cli.frame import MAX_ROWS, Json, show, study_app, verb
from tritune.settings import Settings


@study_app.command("export")
@verb
def study_export(
    study_id: str,
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            help="The file; its ending says what: .html, .csv, .parquet, .json, .pbtxt (the best configuration).",
        ),
    ],
    windows: Annotated[
        bool, typer.Option("--windows", help="With .csv or .parquet: one row a second instead of one a trial.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a study as one file: an HTML report, tables, all of it as JSON, or the winning config.pbtxt."""
    from tritune import exports, report, study_result
    from tritune.store import Store, study_number

    settings = Settings.from_env()
    store = Store.of(settings)
    job = store.job(study_number(study_id))
    document = study_result.document(job, store.trials(study_id=f"s{job.id}", limit=MAX_ROWS))
    rows = report.window_rows(document, lambda trial_id: report.kept(settings, trial_id)) if windows else None
    exports.export(job, document, to, windows=rows)
    size = to.stat().st_size
    show(
        {"study_id": document["study_id"], "file": str(to), "bytes": size},
        as_json,
        f"{to} has s{job.id} ({size:,} bytes).",
    )


@study_app.command("import")
@verb
def study_import(
    file: Path,
    name: Annotated[str | None, typer.Option("--name", help="The model, where the file tells none.")] = None,
    as_json: Json = False,
) -> None:
    """Take in results of perf_analyzer, AIPerf, Locust, Model Analyzer or another Tritune as a study of their own."""
    from tritune import imports
    from tritune.store import Store

    settings = Settings.from_env()
    store = Store.of(settings)
    study_id = imports.import_file(settings, store, file, name=name)
    trial_ids = [trial.trial_id for trial in reversed(store.trials(study_id=study_id, limit=MAX_ROWS))]
    show({"study_id": study_id, "trial_ids": trial_ids}, as_json, imports.sentence(store, study_id))
