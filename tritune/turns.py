"""How a study's configurations take turns on one server: reloaded in turn, or side by side under names of their own.

In turn, the model is loaded with each configuration as an override: the user's config.pbtxt is never touched, and what
the server served before is served again when the study ends.

Belongs here: serving a candidate, putting back. Never: which candidate comes next (study), rows, statistics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tritune import deploy, model_config, servers
from tritune.errors import InputError, ServerError
from tritune.load_plan import LoadPlan
from tritune.model_config import ModelConfig
from tritune.servers import ServerKind, ServerState
from tritune.settings import Settings
from tritune.variants import Variants, clear

Progress = Callable[[str], None]


class Turns:
    """The candidates of one study on this installation's server. `found` is the served configuration (Triton's JSON)
    from before the study; None: the model was not served."""

    def __init__(
        self, settings: Settings, model: str, configs: Sequence[ModelConfig], found: Mapping[str, Any] | None
    ) -> None:
        self._settings = settings
        self._model = model
        self._configs = configs
        self._found = found
        self._served: int | None = None
        self._is_changed = False
        self._variants: Variants | None = None
        self.reload_s: list[float] = []

    def side_by_side(self) -> None:
        """Serve candidates under names of their own from now on. Raises InputError where that cannot be."""
        self._variants = Variants(self._settings, self._model, self._configs)
        self._variants.make()

    def in_turn(self) -> None:
        """Reload candidates in turn from now on."""
        if self._variants is not None:
            clear(self._settings)
            self._variants = None

    def alone(self, candidate: int) -> None:
        """Unload every variant but this one."""
        if self._variants is not None:
            self._variants.unload_others(servers.connect(self._settings), candidate)

    def together(self, progress: Progress) -> None:
        """Load every variant."""
        if self._variants is not None:
            triton = servers.connect(self._settings)
            for candidate in range(len(self._configs)):
                progress(f"Loading configuration {candidate + 1} of {len(self._configs)}")
                self._variants.load(triton, candidate)

    def serve(self, candidate: int, load: LoadPlan, progress: Progress) -> str:
        """Serve a candidate, warmed up for this load; returns the name it is served by.

        Raises TritonRefusedError with Triton's reason, ServerDownError.
        """
        triton = servers.connect(self._settings)
        if self._variants is not None:
            name = self._variants.name(candidate)
            self._variants.load(triton, candidate)
            deploy.warm(triton, name, load, progress)
            return name
        if self._served != candidate or not triton.model_ready(self._model):
            progress(f"Serving the next configuration of {self._model}")
            began = time.monotonic()
            if triton.has_model_control:  # without it there is but one candidate: what is served
                self._is_changed = True
                triton.load(self._model, config=self._configs[candidate].json)
                self.reload_s.append(time.monotonic() - began)
            self._served = candidate
        deploy.warm(triton, self._model, load, progress)
        return self._model

    def lost(self) -> None:
        """Nobody knows what is served now: the server was started anew, or refused a configuration."""
        self._served = None
        if self._variants is not None:
            self._variants.forget()

    def put_back(self) -> str | None:
        """Serve again what was found before the study; returns a sentence where that could not be done."""
        self.in_turn()
        if not self._is_changed:
            return None
        self._served, self._is_changed = None, False
        return put_back(self._settings, self._model, self._found)


def put_back(settings: Settings, model: str, found: Mapping[str, Any] | None) -> str | None:
    """Serve `found` again where something else is served, without variants; returns a sentence where that could not be
    done."""
    clear(settings)
    now = servers.status(settings)
    if now.kind is not ServerKind.REMOTE and now.state in (ServerState.STOPPED, ServerState.FAILED):
        return None  # the next start serves what the files say
    try:
        triton = servers.connect(settings)
        if not triton.has_model_control:
            return None
        if found is None:
            triton.unload(model)
        elif not triton.model_ready(model) or triton.config(model) != found:
            triton.load(model, config=model_config.from_served(found).json)
    except (ServerError, InputError) as error:
        return f"What {model} served before the study could not be served again: {error}"
    return None
