"""The edge to transformers: load a decoder from a folder, run it against a ``RowCache``, exchange its weights.

Everything that depends on the transformers version is in this file. Needs 5.19 or later.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from seamlessflow.errors import BadInput

from . import packed_attention
from .kv_cache import RowCache
from .packed_attention import New


class CausalModel:
    """A decoder-only language model with full attention in every layer."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._model.requires_grad_(False)
        config = model.config.get_text_config()
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self.max_positions: int = config.max_position_embeddings
        self.dtype: torch.dtype = model.dtype
        self._num_layers: int = config.num_hidden_layers
        self._num_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._head_size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(cls, model_dir: Path, *, dtype: str, attention: str = packed_attention.NAME) -> CausalModel:
        """Read config.json and safetensors. Raises BadInput for a folder or an architecture that cannot be served.

        ``attention``: how transformers computes it; only with row attention can ``logits`` be called.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        if not (model_dir / "config.json").is_file():
            raise BadInput(f"{model_dir} is not a model folder: it has no config.json.")
        config = AutoConfig.from_pretrained(model_dir)
        kinds = set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise BadInput(f"{model_dir.name} has layers of the kinds {sorted(kinds)}; this engine serves full attention only.")
        packed_attention.register()
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=getattr(torch, dtype), attn_implementation=attention, local_files_only=True
        )
        return cls(model)

    @property
    def module(self) -> Any:
        """The transformers model itself, for an engine that brings its own cache."""
        return self._model

    def make_cache(self, *, num_rows: int, max_tokens: int) -> RowCache:
        """An empty cache that fits this model."""
        return RowCache(
            num_layers=self._num_layers,
            num_rows=num_rows,
            num_heads=self._num_heads,
            max_tokens=max_tokens,
            head_size=self._head_size,
            dtype=self.dtype,
        )

    def logits(self, ids: Sequence[int], lasts: Sequence[int], news: Sequence[New], cache: RowCache) -> Tensor:
        """Run the model over a line of new tokens, ``news[row]`` of each row; logits [B, V] after the tokens at ``lasts``."""
        positions_1N, bands = cache.aim(news)
        output = self._model(
            input_ids=torch.tensor([ids]),
            position_ids=positions_1N,
            use_cache=True,
            logits_to_keep=torch.tensor(lasts, dtype=torch.long),
            bands=bands,
            **{self._cache_argument: cache},
        )
        logits_BV: Tensor = output.logits[0]
        return logits_BV

    def read_weights(self, file: Path) -> dict[str, Tensor]:
        """Copies of a safetensors file's tensors that ``adopt`` can put in place: every weight, tied ones (lm_head) once, or
        twice if one likes. Raises BadInput where the file cannot be read, or a name, a shape or a dtype does not fit.
        """
        try:
            sources = load_file(file)
        except (SafetensorError, OSError) as wrong:
            raise BadInput(f"{file.name} cannot be read as safetensors: {wrong}. Nothing was copied.") from wrong
        targets = self._targets()
        owned = {name for name, _ in self._model.named_parameters()}
        unknown, missing = sorted(sources.keys() - targets.keys()), sorted(owned - sources.keys())
        if unknown or missing:
            raise BadInput(f"Weights do not fit: unknown {unknown[:3]}, missing {missing[:3]}. Nothing was copied.")
        for name, source in sources.items():
            self._check(name, source, targets[name])
        # Copies: mapped pages are the file's, and the system may take them away and read each again while sampling.
        return {name: source.to(targets[name].dtype, copy=True) for name, source in sources.items()}

    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Exchange the weights for what ``read_weights`` returned. Nothing is copied: this is all that a pause waits for, and
        for as long as both exist they take twice the memory.
        """
        targets = self._targets()
        for name, tensor in weights.items():
            targets[name].data = tensor

    def _targets(self) -> dict[str, Tensor]:
        return dict(self._model.named_parameters(remove_duplicate=False))

    def _check(self, name: str, source: Tensor, target: Tensor) -> None:
        if source.shape != target.shape:
            raise BadInput(f"{name}: expected shape {tuple(target.shape)}, got {tuple(source.shape)}. Nothing was copied.")
        # transformers keeps some tensors wider than the rest, while a version has one dtype throughout: that is no loss.
        if source.dtype not in (target.dtype, self.dtype):
            raise BadInput(
                f"{name}: expected {target.dtype}, as it is served, got {source.dtype}: rounded again, it would not be what "
                "the trainer recomputes. Nothing was copied."
            )
