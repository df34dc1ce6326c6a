"""How long a node takes: a roofline over published figures. Pure; seconds, tokens and bytes everywhere.

    one decode step       decode_fixed + decode_per_sequence * batch + decode_per_context * (sum of context lengths)
    prefill               prefill_per_token * tokens
    one optimiser step    train_per_token * tokens / nodes of the gang + train_fixed

Training splits over a gang without loss, and the attention's part of prefill is not counted: both favour systems that train
on all nodes at once, not ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import constants
from .constants import H800, QWEN_32B, Device, Model


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one kind of node with one model."""

    decode_fixed: float
    """Seconds of each decode step: weights are read once, whatever the batch."""
    decode_per_sequence: float
    decode_per_context: float
    """Seconds to read keys and values of one token."""
    prefill_per_token: float
    train_per_token: float
    """Seconds on one node, of prompt and sampled tokens alike."""
    train_fixed: float
    """Seconds of each optimiser step, publishing the weights included."""
    fetch_seconds: float
    """New weights to the machine, while sampling goes on."""
    load_seconds: float
    """Sampling stands still: they go into the engine."""
    sleep_seconds: float
    wake_seconds: float
    onload_seconds: float
    """Trainer's state from host memory to the device."""
    offload_seconds: float
    kv_tokens: int
    """Tokens whose keys and values fit into the engine."""
    slots: int
    """Most sequences side by side."""

    def step_seconds(self, batch: int, context: int) -> float:
        """One decode step of ``batch`` sequences that hold ``context`` tokens together."""
        return self.decode_fixed + self.decode_per_sequence * batch + self.decode_per_context * context

    def prefill_seconds(self, tokens: int) -> float:
        return self.prefill_per_token * tokens

    def train_seconds(self, tokens: int, nodes: int = 1) -> float:
        """One optimiser step on so many tokens by so many nodes together."""
        return self.train_per_token * tokens / nodes + self.train_fixed


def cost_of(device: Device = H800, model: Model = QWEN_32B, *, slots: int = constants.SLOTS) -> Cost:
    """The roofline of one server that serves one copy of the model over all its accelerators."""
    bandwidth = device.accelerators * device.bandwidth_bytes * constants.BANDWIDTH_SHARE
    flops = device.accelerators * device.flops
    memory = device.accelerators * device.memory_bytes * constants.KV_MEMORY_SHARE - model.weight_bytes
    host_link = device.accelerators * constants.HOST_LINK_BYTES
    between_layers = 2 * model.layers * constants.ALLREDUCE_SECONDS
    state = constants.OPTIMIZER_BYTES * model.parameters / host_link
    transfer = model.weight_bytes / constants.NETWORK_BYTES
    return Cost(
        decode_fixed=model.weight_bytes / bandwidth + between_layers + constants.DECODE_HOST_SECONDS,
        decode_per_sequence=constants.SEQUENCE_SECONDS * model.parameters / QWEN_32B.parameters,
        decode_per_context=model.kv_bytes / bandwidth,
        prefill_per_token=2 * model.parameters / (flops * constants.PREFILL_FLOPS_SHARE),
        train_per_token=constants.TRAIN_OPERATIONS * model.parameters / (flops * constants.TRAIN_FLOPS_SHARE),
        train_fixed=constants.STEP_SECONDS + transfer,
        fetch_seconds=transfer,
        load_seconds=constants.LOAD_PAUSE_SECONDS + model.weight_bytes / host_link,
        sleep_seconds=constants.SLEEP_SECONDS,
        wake_seconds=constants.WAKE_SECONDS,
        onload_seconds=state,
        offload_seconds=state,
        kv_tokens=int(memory / model.kv_bytes),
        slots=slots,
    )


def with_train_work(cost: Cost, *, rollout_seconds: float, tokens: int, ratio: float) -> Cost:
    """The same node where training costs ``ratio`` times as much as rollout does.

    rollout_seconds: node-seconds of rolling out one step's groups; tokens: that step trains on. Both of one workload
    (``workloads.step_work``). ratio: training over rollout, such as 1 / 4. Fixed parts of a step count as training of one node.
    """
    per_token = max(0.0, ratio * rollout_seconds - cost.train_fixed) / tokens
    return replace(cost, train_per_token=per_token)
