"""Where a trial's numbers come from: the model's file, the server, the machine, the program.

Belongs here: what is kept beside the numbers. Never: numbers.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tritune
from tritune import servers
from tritune.repository import ModelRepository
from tritune.settings import Settings
from tritune.triton import Triton


def provenance_of(
    settings: Settings,
    triton: Triton,
    repository: ModelRepository,
    model: str,
    served_as: str,
    served_config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What is known of a trial of `model`, which the server serves under the name `served_as`."""
    metadata = triton.server_metadata()
    status = servers.status(settings)
    known = repository.entry(model).versions if model in {m.name for m in repository.models()} else ()
    versions = [version for version in triton.versions(served_as) if version in known] or known
    return {
        "served_config": served_config,
        "model_version": max(versions) if versions else None,
        "model_sha256": repository.model_hash(model, max(versions)) if versions else None,
        "server_kind": str(status.kind) if status.kind else None,
        "server_http": triton.endpoints.http,
        **({"image": status.image, "gpus": status.gpus, "container": status.container} if status.image else {}),
        "triton_version": metadata.get("version"),
        "machine": machine(),
        "tritune_version": tritune.__version__,
        "git_commit": git_commit(settings.root),
    }


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """What the load test ran on: processor, cores, memory, system."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory = 0
    return {
        "cpu": name,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


@lru_cache(maxsize=4)
def git_commit(root: Path) -> str | None:
    """The commit of this checkout, with `+` where files differ from it; None outside a checkout."""
    try:
        git = ["git", "-C", str(root)]
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=5)
        if commit.returncode:
            return None
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + ("+" if dirty.stdout.strip() else "")
