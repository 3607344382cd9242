"""Tensors in memory that the generator and a server on the same machine share: made, registered, given back.

Belongs here: where each tensor lies, and the life of the regions. Never: requests, sending.

The process that starts a generator owns the regions (child.py): it makes them before the generator starts and gives
them back when the generator has ended, in whatever way. The generator's processes need only names and offsets. Where
the owner was killed, Python's resource tracker unlinks the memory, and the generator, which then ends by itself,
unregisters.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.payload import Payload, byte_size
from tritune.errors import LoadTestError, TrituneError
from tritune.load_plan import GeneratorPlan, LoadPlan, SharedMemory
from tritune.plan import Endpoints, Signature, TensorSpec
from tritune.triton import Triton

MEMORY = Path("/dev/shm")
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies."""

    region: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where all tensors lie: `inputs` one row a payload, `outputs` by name; the sizes of the two regions in bytes.

    An output whose size the model does not fix (a free dimension, BYTES) has no place and comes in the response.
    All requests share the places of the outputs, as perf_analyzer's do.
    """

    inputs: tuple[tuple[Place, ...], ...]
    outputs: Mapping[str, Place]
    input_size: int
    output_size: int


def names(prefix: str) -> tuple[str, str]:
    """The regions of inputs and of outputs, to Triton and (behind a slash) to the system."""
    return f"{prefix}-in", f"{prefix}-out"


def layout(prefix: str, pool: Sequence[Payload], signature: Signature, load: LoadPlan) -> Layout:
    """The same for the same plan, in every process."""
    region_in, region_out = names(prefix)
    rows: list[tuple[Place, ...]] = []
    end_in = end_out = 0
    for payload in pool:
        row = []
        for tensor in payload:
            row.append(Place(region_in, end_in, len(tensor.raw)))
            end_in += _aligned(len(tensor.raw))
        rows.append(tuple(row))
    outputs = {}
    for spec in signature.outputs:
        size = _fixed_size(spec, load.batch if signature.max_batch_size > 0 else 1)
        if size is not None:
            outputs[spec.name] = Place(region_out, end_out, size)
            end_out += _aligned(size)
    return Layout(tuple(rows), outputs, max(end_in, 1), max(end_out, 1))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _fixed_size(spec: TensorSpec, batch: int) -> int | None:
    size = byte_size(spec.datatype)
    if size is None or any(extent < 0 for extent in spec.shape):
        return None
    return int(np.prod((batch, *spec.shape), dtype=np.int64)) * size


class Regions:
    """Two regions that exist and are known to the server, until `release`."""

    def __init__(self, prefix: str, endpoints: Endpoints) -> None:
        self.prefix = prefix
        self._endpoints = endpoints
        self._handles: list[Any] = []

    @classmethod
    def create(cls, plan: GeneratorPlan, pool: Sequence[Payload]) -> Regions:
        """Make, fill and register them. Raises LoadTestError: no room, or a server that cannot see this memory."""
        from tritonclient.utils import shared_memory as memory

        regions = cls(f"tritune-load-{os.getpid()}-{secrets.token_hex(4)}", plan.endpoints)
        where = layout(regions.prefix, pool, plan.signature, plan.load)
        sizes = (where.input_size, where.output_size)
        free = shutil.disk_usage(MEMORY).free if MEMORY.exists() else sum(sizes)
        if sum(sizes) > free:  # writing beyond it would kill the process
            raise LoadTestError(
                f"The shared memory of {sum(sizes) / 1e6:.1f} MB does not fit into {MEMORY}, which has "
                f"{free / 1e6:.1f} MB free. Enlarge it (Docker: --shm-size), or leave --shared-memory out."
            )
        try:
            for name, size in zip(names(regions.prefix), sizes, strict=True):
                regions._handles.append(memory.create_shared_memory_region(name, name, size, create_only=True))
            for payload, row in zip(pool, where.inputs, strict=True):
                for tensor, place in zip(payload, row, strict=True):
                    raw = np.frombuffer(tensor.raw, dtype=np.uint8)
                    memory.set_shared_memory_region(regions._handles[0], [raw], place.offset)
            with Triton(plan.endpoints) as triton:
                for name, size in zip(names(regions.prefix), sizes, strict=True):
                    triton.register_system_memory(name, f"/{name}", size)
        except (memory.SharedMemoryException, OSError, TrituneError) as error:
            regions.release()
            raise LoadTestError(
                f"The server at {plan.endpoints.http} could not use shared memory: {str(error).rstrip('.')}. It "
                "must run on this machine (a container needs --ipc=host). Otherwise leave --shared-memory out."
            ) from error
        return regions

    def release(self) -> None:
        """Unregister and unlink; more than once does no harm."""
        from tritonclient.utils import shared_memory as memory

        unregister(self.prefix, self._endpoints)
        handles, self._handles = self._handles, []
        for handle in handles:
            with contextlib.suppress(memory.SharedMemoryException, OSError):
                memory.destroy_shared_memory_region(handle)


def unregister(prefix: str, endpoints: Endpoints) -> None:
    """Let the server forget the regions; a server that is gone has forgotten them."""
    with contextlib.suppress(TrituneError), Triton(endpoints) as triton:
        for name in names(prefix):
            triton.unregister_system_memory(name)


def is_wanted(load: LoadPlan) -> bool:
    """Whether Tritune has to make the regions (perf_analyzer makes its own)."""
    return load.shared_memory is SharedMemory.SYSTEM and load.driver == "locust"
