"""A study in a file: the ending says in which form; the file is whole or not there.

Belongs here: which form, writing. Never: what stands in it (report, report_html).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tritune import report, report_html
from tritune.errors import InputError, StoreError
from tritune.store import Job
from tritune.study_frames import Document

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".html", ".htm", ".csv", ".parquet", ".json", ".pbtxt")


def export(job: Job, document: Document, to: Path, *, windows: pd.DataFrame | None = None) -> None:
    """Write a study in the form that the file's ending names; `windows` takes the place of the rows of trials.

    Raises InputError for an ending that is not known and StoreError where the file cannot be written.
    """
    ending = to.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{to.name} has no ending that says what to write. Use one of {', '.join(ENDINGS)}.")
    if windows is not None and ending not in (".csv", ".parquet"):
        raise InputError(f"Windows are rows, so they cannot become {to.name}. Use .csv or .parquet.")
    if ending in (".csv", ".parquet"):
        table = report.trial_rows(document) if windows is None else windows
        write(to, report.csv_text(table).encode() if ending == ".csv" else report.parquet_bytes(table))
    elif ending == ".json":
        write(to, report.json_text(job, document).encode())
    elif ending == ".pbtxt":
        write(to, report.winning_config(document).encode())
    else:
        write(to, report_html.page(document, report.json_text(job, document)).encode())


def write(to: Path, data: bytes) -> None:
    """The file with all of it, or as it was before. Raises StoreError."""
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(to)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(
            f"{to} could not be written ({error.strerror or error}). Choose a folder that exists and has room."
        ) from error
