"""A plain Locust user around tritonclient, as its documentation suggests one: what ours is compared with.

Steered by BENCH_MODEL, BENCH_INPUT, BENCH_SHAPE and BENCH_RATE (requests/s of one user; 0: as fast as it goes).
"""

from __future__ import annotations

import os
import time

import numpy as np
import tritonclient.http as triton
from locust import User, constant_throughput, task

MODEL = os.environ["BENCH_MODEL"]
SHAPE = [int(size) for size in os.environ["BENCH_SHAPE"].split(",")]
RATE = float(os.environ["BENCH_RATE"])


class PlainUser(User):
    """One client with one connection."""

    if RATE:
        wait_time = constant_throughput(RATE)

    def on_start(self) -> None:
        self.client = triton.InferenceServerClient(self.host)
        tensor = triton.InferInput(os.environ["BENCH_INPUT"], SHAPE, "FP32")
        tensor.set_data_from_numpy(np.random.default_rng(0).random(SHAPE, dtype=np.float32))
        self.inputs = [tensor]

    @task
    def infer(self) -> None:
        began = time.perf_counter()
        error, length = None, 0
        try:
            length = self.client.infer(MODEL, self.inputs).as_numpy("OUTPUT__0").nbytes
        except Exception as failure:
            error = failure
        self.environment.events.request.fire(
            request_type="triton",
            name=MODEL,
            response_time=(time.perf_counter() - began) * 1e3,
            response_length=length,
            exception=error,
        )
