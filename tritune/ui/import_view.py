"""Taking in results of other programs and other installations.

Belongs here: the dialog. Never: formats (imports, importers).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import streamlit as st

from tritune import imports, ui
from tritune.ui import wording

_PIECE = 1 << 20


def button() -> None:
    """A button that opens the dialog."""
    if st.button("Import results", icon=":material/upload:"):
        _ask()


@st.dialog("Import results")
def _ask() -> None:
    """One file, and the model's name where the file tells none."""
    with ui.guard():
        st.markdown(wording.plain(f"What can be imported: {imports.KNOWN}."))
        upload = st.file_uploader("File", key="import_file")
        name = st.text_input("Model", key="import_name", placeholder="as the file says, or its name", max_chars=64)
        if (
            st.button("Import", type="primary", icon=":material/upload:", disabled=upload is None)
            and upload is not None
        ):
            with st.spinner("Reading the file"), tempfile.TemporaryDirectory(prefix="tritune-import-") as folder:
                path = Path(folder) / f"{Path(upload.name).stem[:100]}{Path(upload.name).suffix[:20]}".lstrip(".")
                with path.open("wb") as file:
                    while piece := upload.read(_PIECE):
                        file.write(piece)
                study_id = imports.import_file(ui.settings(), ui.store(), path, name=name.strip() or None)
            st.switch_page("pages/compare.py", query_params={"study": study_id})
