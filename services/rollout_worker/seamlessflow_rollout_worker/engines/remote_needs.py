"""What a run needs of a server, and the words that refuse one which does not have it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.remote_control import Abilities
from seamlessflow_rollout_worker.engines.remote_probe import Meaning, is_exact


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a run. Evaluation is greedy, where every meaning of a logprob is the same."""

    temperature: float
    top_p: float
    fixed_model: bool
    """Its weights are not to change."""

    def check(self, server: str, abilities: Abilities, meaning: Meaning | None) -> None:
        """Raises BadInput where the run cannot be sampled for by this server, saying what would help."""
        if not (self.fixed_model or abilities.updates):
            raise BadInput(
                f"{server} cannot load weights, so the run would learn from a model that stays as it is. vllm needs "
                "VLLM_SERVER_DEV_MODE=1 (in a network of its own: that opens endpoints which ask for no key). Where a fixed "
                "model is meant, say model.engine_options.fixed_model = true"
            )
        if not is_exact(meaning, self.temperature, self.top_p):
            of = f"of the distribution {meaning}" if meaning else "of a distribution that could not be found out"
            raise BadInput(
                f"{server}: its logprobs are {of}; the run samples at temperature {self.temperature:g} and top_p "
                f"{self.top_p:g} and needs those after temperature, before top-p. vllm: sampling.temperature = 1 with its "
                "default --logprobs-mode, or sampling.top_p = 1 with processed_logprobs"
            )
