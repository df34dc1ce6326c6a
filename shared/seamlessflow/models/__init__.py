"""Models to run with: by name, by folder, or from a hub. torch and transformers load on first use, not on import."""

from .resolve import resolve_model
from .smollm2 import prepare_smollm2
from .tiny import make_tiny

__all__ = ["make_tiny", "prepare_smollm2", "resolve_model"]
