"""What every page's source must be: it begins with ui.frame, is short, and does no other layer's work."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tritune.settings import ROOT

PAGES = [ROOT / "app.py", *sorted((ROOT / "pages").glob("*.py"))]
FORBIDDEN = (
    "sqlalchemy",
    "sqlite3",
    "subprocess",
    "socket",
    "http",
    "urllib",
    "urllib3",
    "requests",
    "tritonclient",
    "threading",
    "multiprocessing",
    "concurrent",
    "asyncio",
    "time",
    "statistics",
    "scipy",
    "os",
    "signal",
    "torch",
    "locust",
)


@pytest.fixture(params=PAGES, ids=lambda path: path.name)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def statements(page: Path) -> list[ast.stmt]:
    """The page's statements after its docstring and imports."""
    body = ast.parse(page.read_text()).body
    assert ast.get_docstring(ast.parse(page.read_text()))
    return [node for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]


def test_the_first_statement_is_the_frame(page: Path) -> None:
    first = statements(page)[0]
    assert isinstance(first, ast.Expr)
    assert ast.unparse(first).startswith("ui.frame(")


def test_everything_after_the_frame_is_guarded(page: Path) -> None:
    rest = statements(page)[1:]
    assert [ast.unparse(node).splitlines()[0] for node in rest] == ["with ui.guard():"]


def test_a_page_fits_on_a_hundred_lines(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 100


def test_a_page_imports_no_other_layer(page: Path) -> None:
    for node in ast.walk(ast.parse(page.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] not in FORBIDDEN, f"{page.name} imports {name}"


def test_no_page_uses_navigation_loops_or_deprecated_width(page: Path) -> None:
    text = page.read_text()
    assert "st.navigation" not in text
    assert "use_container_width" not in text
    assert not re.search(r"^\s*while ", text, re.MULTILINE)


def test_pages_lie_flat_and_every_one_is_in_the_navigation() -> None:
    from tritune import ui

    linked = {path for group in ui.PAGES.values() for path, _, _ in group}
    assert linked == {str(path.relative_to(ROOT)) for path in PAGES}
    assert not [path for path in (ROOT / "pages").rglob("*.py") if path.parent != ROOT / "pages"]


def test_only_the_ui_modules_and_the_pages_import_streamlit() -> None:
    for path in [*(ROOT / "tritune").rglob("*.py"), *(ROOT / "loadgen").rglob("*.py")]:
        if re.search(r"^\s*(import|from) streamlit", path.read_text(), re.MULTILINE):
            assert path.parent == ROOT / "tritune" / "ui", path
