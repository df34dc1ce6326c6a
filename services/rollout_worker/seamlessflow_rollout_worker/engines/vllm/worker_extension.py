"""What our engine adds to vLLM's workers: loading weights from a local file, in place. Mixed into vLLM's worker class by name.

Why vLLM's own layer-wise reload and no plain copy: after loading, vLLM keeps a linear layer in the form its kernels want (on a
CPU the parameter itself is gone), so there is nothing that a tensor of the checkpoint could be copied over.
"""

from __future__ import annotations

from typing import Any

from safetensors.torch import load_file
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class LoadsFromFile:
    """Mixed into a worker; runs between two steps, in every rank."""

    model_runner: Any

    def load_from_file(self, file: str) -> None:
        """Load a complete version; the file's pages are in memory already where it was staged."""
        self.model_runner.reload_weights(weights_iterator=iter(load_file(file).items()))
        _pack_output_layers(self.model_runner.get_model())


def _pack_output_layers(model: Any) -> None:
    """Pack again, on a CPU, what output layers keep packed beside their parameter.

    No tensor of a checkpoint is loaded into a tied one, so the reload leaves it the packed copy of its old weights.
    """
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)
