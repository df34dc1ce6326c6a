"""From a model folder to a learner. The only module that knows transformers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from seamlessflow.config.run import RunConfig
from seamlessflow.errors import BadInput

from .learner import Hyperparameters, Learner

# Which device and precision to compute in.


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


WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")
CHECK_TOLERANCE = 1e-3
"""Allowed difference of logits between two ways that must agree; float32 rounding is far below."""


def served_dtype(folder: Path, wanted: str) -> torch.dtype:
    """The precision weights are published in. ``auto``: the one config.json names, float32 where it names none."""
    if wanted == "auto":
        config = json.loads((folder / "config.json").read_text())
        wanted = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = getattr(torch, wanted, None)
    if not isinstance(dtype, torch.dtype):
        raise BadInput(f"{folder.name}/config.json: dtype {wanted!r} is unknown; set model.dtype in the run file")
    return dtype


def load_learner(folder: Path, config: RunConfig, device: torch.device) -> Learner:
    """Read the base model and check that it can be trained in packed rows; with ``lora`` its adapters are what is trained.
    Raises BadInput; takes seconds."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a service logs events
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError) as wrong:
        raise BadInput(f"model {config.model.name}: cannot be loaded for training: {wrong}") from wrong
    check_architecture(model, config.model.name)
    algorithm, served = config.algorithm, served_dtype(folder, config.model.dtype)
    settings = Hyperparameters(
        temperature=config.sampling.temperature,
        weight_decay=algorithm.weight_decay,
        max_grad_norm=algorithm.max_grad_norm,
        importance_cap=algorithm.importance_cap,
        micro_batch_tokens=algorithm.micro_batch_tokens,
    )
    compute = pick_compute_dtype(device, served)
    if config.lora is None:
        return Learner(model.to(device), settings, compute_dtype=compute)
    from .lora import adapter_learner  # peft: for runs that ask for it

    return adapter_learner(
        model, config.lora, settings, name=config.model.name, seed=config.seed, served=served, compute=compute, device=device
    )


@torch.no_grad()
def check_architecture(model: Any, name: str) -> None:
    """Raise BadInput unless the model's logits are its output layer over its body, and it honours tree attention.

    Two branches behind one prefix must see the prefix and not each other, as if each were alone.
    """
    model.eval()
    first, second = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 4]])
    packed = torch.tensor([[1, 2, 3, 4]])
    allowed_TT = torch.ones(4, 4, dtype=torch.bool).tril()
    allowed_TT[3, 2] = False
    mask_B1TT = torch.zeros(1, 1, 4, 4).masked_fill_(~allowed_TT, torch.finfo(torch.float32).min)
    hidden = model.base_model(
        input_ids=packed, attention_mask=mask_B1TT, position_ids=torch.tensor([[0, 1, 2, 2]]), use_cache=False
    ).last_hidden_state
    logits_TV = model.get_output_embeddings()(hidden)[0]
    alone: list[Tensor] = [model(input_ids=ids, use_cache=False).logits[0, 2] for ids in (first, second)]
    worst = max(float((logits_TV[2] - alone[0]).abs().max()), float((logits_TV[3] - alone[1]).abs().max()))
    if not worst <= CHECK_TOLERANCE:
        raise BadInput(
            f"model {name} ({type(model).__name__}): logits of packed sequences differ by {worst:.3g} from those of each "
            "alone; models that scale their logits or attend otherwise than to everything before cannot be trained yet"
        )


def model_files(folder: Path, dtype: torch.dtype) -> dict[str, bytes]:
    """Config, tokenizer, chat template and generation config, as workers and managers shall see them. No weights.

    config.json names ``dtype``, the precision of what is published, whatever the base model was kept in.
    """
    files = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith(WEIGHT_SUFFIXES) and not path.name.startswith(".")
    }
    config = json.loads(files["config.json"])
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    files["config.json"] = json.dumps(config, indent=2).encode()
    if "generation_config.json" not in files:
        made = transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(folder))
        files["generation_config.json"] = made.to_json_string().encode()
    return files
