"""huggingface/trl#5775, modelscope/ms-swift#8123, NVIDIA-NeMo/RL#1518, NVIDIA-NeMo/RL#4161: rewards that are finite and still break the
normalisation: huge ones, nearly equal ones, one among equals; the loss becomes NaN, or a group counts a million times.

Expected: advantages are finite, at most sqrt(G - 1) in size when normalised, and what cannot be computed is refused where the reward is
given, not in the trainer.
"""

import math

import torch
from sf_unit import verdict

from seamlessflow_trainer.algorithms.grpo import group_advantages

bad = []
GROUPS = {
    "0/1": [0.0, 1.0, 0.0, 0.0],
    "0.95 seven times, one 0 (NeMo-RL)": [0.0] + [0.95] * 7,
    "0.1+0.2 and 0.3": [0.1 + 0.2, 0.3, 0.3, 0.3],
    "1e-9 apart": [1e-9, 2e-9, 3e-9, 0.0],
    "large offset": [1e9, 1e9 + 1, 1e9, 1e9],
    "1e39 (beyond float32)": [1e39, 0.0, 0.0, 0.0],
    "1e160": [1e160, 0.0, 0.0, 0.0],
    "1e308 once": [1e308, 0.0, 0.0, 0.0],
    "1e308 twice": [1e308, 1e308, 0.0, 0.0],
    "+-1e308": [1e308, -1e308, 0.0, 0.0],
    "+-1.7e308": [1.7e308, -1.7e308, 1.7e308, -1.7e308],
    "denormal": [5e-324, 0.0, 0.0, 0.0],
}
for name, rewards in GROUPS.items():
    for normalize in (True, False):
        try:
            a = group_advantages(rewards, normalize_std=normalize)
            t = torch.tensor(a, dtype=torch.float32)
            limit = math.sqrt(len(rewards) - 1) + 1e-6 if normalize else math.inf
            fine = (
                bool(torch.isfinite(t).all())
                and max(map(abs, a)) <= limit
                and (not normalize or max(map(abs, a)) > 0 or max(rewards) - min(rewards) < 1e-6)
            )
            print(f"{name:36} normalised {normalize!s:5} {[f'{x:.3g}' for x in a][:4]} {'' if fine else '   <-- '}")
        except Exception as wrong:
            fine = False
            print(f"{name:36} normalised {normalize!s:5} {type(wrong).__name__}: {wrong}   <-- ")
        bad += [] if fine else [f"{name}/{normalize}"]
verdict(not bad, f"advantages of finite rewards (not: {bad})")
