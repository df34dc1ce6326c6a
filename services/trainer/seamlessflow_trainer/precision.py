"""Which device and precision to compute in."""

from __future__ import annotations

import time

import torch

PROBE_ROWS, PROBE_WIDTH, PROBE_REPEATS = 256, 512, 3


def pick_device(wanted: str) -> torch.device:
    """``auto``: CUDA where there is one, else the CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_compute_dtype(device: torch.device, served: torch.dtype) -> torch.dtype:
    """bfloat16 where the weights are served in it and the device multiplies faster in it; else float32.

    Measured, not looked up: a CPU may know bfloat16 and still be slower in it. Takes a few milliseconds.
    """
    if served != torch.bfloat16:
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    seconds = {torch.bfloat16: float("inf"), torch.float32: float("inf")}
    for _ in range(PROBE_REPEATS):  # taking turns, so that other load hits both
        for dtype in seconds:
            seconds[dtype] = min(seconds[dtype], _product_seconds(dtype))
    return min(seconds, key=lambda dtype: seconds[dtype])


def _product_seconds(dtype: torch.dtype) -> float:
    left, right = torch.ones(PROBE_ROWS, PROBE_WIDTH, dtype=dtype), torch.ones(PROBE_WIDTH, PROBE_WIDTH, dtype=dtype)
    left @ right
    started = time.perf_counter()
    for _ in range(4):
        left @ right
    return time.perf_counter() - started
