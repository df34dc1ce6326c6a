"""All constants of the cost model, the workloads and the scales of timed runs, each with where it comes from.

Three kinds: *published* (with the place), *measured* (by us, with the machine), *chosen* (nobody published it; why this value).
No other file of this package holds a number that describes hardware, a model or a workload, or the scale of a timed run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One server: its accelerators act together as one node (one engine, one share of a trainer)."""

    name: str
    accelerators: int
    flops: float
    """Dense BF16 operations a second of one accelerator."""
    bandwidth_bytes: float
    """Of its memory, a second."""
    memory_bytes: float


H800 = Device("8xH800", accelerators=8, flops=989e12, bandwidth_bytes=3.35e12, memory_bytes=80e9)
"""Published: the H800 is an H100 SXM with slower NVLink. NVIDIA's H100 SXM data sheet: 1,979 TFLOPS BF16 with sparsity, so 989
dense; 3.35 TB/s; 80 GB. Chosen: a server of eight as one node, as the systems compared with deploy it (32 H800 of the
SeamlessFlow paper are four of them)."""

H200 = Device("8xH200", accelerators=8, flops=989e12, bandwidth_bytes=4.8e12, memory_bytes=141e9)
"""Published: NVIDIA's H200 data sheet: the same compute, 4.8 TB/s, 141 GB."""


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder with grouped-query attention, served in BF16."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_width: int

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> float:
        """Keys and values of one token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_width


QWEN_32B = Model("Qwen2.5-32B", 32.8e9, layers=64, kv_heads=8, head_width=128)
"""Published: its config.json and model card. The size of KAT-Dev-32B, which SeamlessFlow's authors trained."""

BANDWIDTH_SHARE = 0.70
"""Of the memory's bandwidth that decoding reaches. Chosen: published roofline comparisons with vLLM find 60 to 80 %."""

PREFILL_FLOPS_SHARE = 0.50
"""Of dense flops that prefilling reaches. Chosen: large matrix products reach 50 to 70 % on Hopper; attention is not counted
apart."""

TRAIN_FLOPS_SHARE = 0.40
"""Model flops utilisation of forward and backward. Published: 33 to 58 % for dense 7B to 13B models on 1 to 16 H200, 44 % on
eight (KempnerForge, benchmarks/mfu_scaling). Rescaled where a run asks for a ratio of training to rollout work."""

TRAIN_OPERATIONS = 8
"""Per parameter and token: 6 for forward and backward, 2 for the forward pass that computes old logprobs (verl's old_log_prob:
31 to 34 % of update_actor in verl's docs/advance/fully_async.md, colocated, which is those 2 of 6)."""

DECODE_HOST_SECONDS = 2e-3
"""Of each decode step outside kernels: scheduling, sampling, detokenising. Chosen: vLLM names 1 to 3 ms for its V1 core."""

ALLREDUCE_SECONDS = 15e-6
"""One small all-reduce over eight accelerators on NVLink; two in each layer. Chosen: 10 to 20 us are usual for custom
all-reduce."""

SEQUENCE_SECONDS = 4e-6
"""Of a decode step for each sequence: its share of sampling and of matrix products. Chosen: half the compute roofline of a
32B model on eight accelerators (2 x 32.8e9 / (8 x 989e12) = 8 us at full use is hidden under memory reads for the other
half)."""

KV_MEMORY_SHARE = 0.90
"""Of memory that the engine uses for weights and KV: vLLM's default ``gpu_memory_utilization``."""

SLEEP_SECONDS = 1.5
"""Engine to sleep: weights to host memory, KV dropped. Published: vLLM logs 'It took 1.46 seconds to fall asleep' to 1.60
(huggingface/trl#4086, 51 GiB freed)."""

WAKE_SECONDS = 0.8
"""Engine awake, weights back from host memory. Published: vLLM's sleep-mode post (2025-10-26): 0.26 and 0.82 s for small
models, 3 to 6 s for a 235B model; 8 GB for each of eight accelerators is a small model's share."""

HOST_LINK_BYTES = 40e9
"""Between one accelerator and host memory, a second. Published: PCIe 5.0 x16 is 63 GB/s one way; chosen: two thirds of it."""

OPTIMIZER_BYTES = 14
"""For each parameter of the trainer besides BF16 weights: FP32 master weights and two moments (12), gradients (2); these go
to host memory while the node rolls out. Published: mixed-precision Adam, as in ZeRO (arXiv 1910.02054)."""

NETWORK_BYTES = 50e9
"""Of one server to object storage or to another server, a second. Chosen: one of its eight 400 Gb/s ports."""

LOAD_PAUSE_SECONDS = 0.5
"""Sampling stands still for new weights that are on the machine already, besides the copy. Measured: 0.47 s for
``collective_rpc("reload_weights", kwargs={"weights_path": FOLDER})`` of vLLM 0.32 with eight frozen requests (SmolLM2-135M in
bfloat16, two shared cores with AMX, 24 GB, no GPU); fetching goes on beside sampling."""

STEP_SECONDS = 2.0
"""Of each optimiser step besides tokens: assembling, clipping, Adam. Chosen: a few hundred ms of Adam, a second of packing."""

CONTROL_SECONDS = 0.05
"""From a cause to what a service does about it: two hops and a decision. Measured: 1.4 ms for a call of 4 KiB through journal
and queues and back (nats-server 2.15, two shared cores, loopback; ``./task load:bus`` measures such calls); chosen: 50 ms, for
a scheduler that decides within that time at 1,000 nodes."""

SLOTS = 256
"""Sequences side by side that an engine has room for, and ``fleet.slots`` of a run: vLLM's default ``max_num_seqs``. Where
fewer contexts fit into its cache a worker takes fewer episodes by itself
(``seamlessflow_rollout_worker.generations.context_budget``)."""

LONGEST_CONTEXT = 40_960
"""Of the model as served. Published: 40 K (SkyRL-Agent, arXiv 2511.16108). Only a worker that has seen no episode end makes use
of it: it takes few of them then."""

BUCKETS_PER_NODE = 8
"""Affinity buckets, as far as a run document allows (64). Chosen: with two a node, six of eight nodes that roll out own two or
three each, half as much again; with eight, ten or eleven (simulated: 0.85 and 0.90 of the bound)."""

# Workloads. Lengths in tokens; lognormal distributions by median and sigma (the standard deviation of the logarithm).

GROUP_SIZE = 16
"""Episodes of a task. Published: 16 responses for each prompt in DAPO (arXiv 2503.14476), AReaL (2505.24298) and verl's
fully_async.md."""

GROUPS_PER_NODE = 16
"""Groups of one step for each node of the fleet, so 256 episodes for each server of eight. Published: 128 (Skywork-OR1-32B,
arXiv 2505.22312: 256 x 16 on 32 servers), 170 (AReaL-32B: 512 x 16 on 48), 512 (DAPO and verl: 512 x 16 on 16). Chosen: in
between."""

PROMPT_TOKENS = 200
"""A competition problem with its template. Chosen."""

RESPONSE_MEDIAN, RESPONSE_SIGMA, RESPONSE_LONGEST = 4_000, 1.0, 32_768
"""Reasoning. Published: longest 27,648 (AReaL), 28 K (verl), 32 K (Skywork-OR1); approximately lognormal with a 99th
percentile ten times the median (sigma 1), and 5 % of responses with 30 to 50 % of tokens (StreamRL, arXiv 2504.15930, and
RollPacker, 2509.21009, describe the same tail). Chosen: a median in the middle of what DAPO (3 to 6 K) and AReaL (8 K) show
during training."""

GROUP_VARIANCE = 0.5
"""Share of the logarithm's variance that the responses to one prompt have in common. Chosen; StreamRL predicts lengths from
prompts, so it is not small."""

AGENT_PROMPT_TOKENS = 2_000
"""System prompt, tools and issue of a software-engineering agent. Chosen."""

TURNS_MEDIAN, TURNS_SIGMA, TURNS_MOST = 15, 0.6, 50
"""Published: at most 50 to 100 steps (DeepSWE; SkyRL-Agent, arXiv 2511.16108). Chosen: the median."""

TURN_MEDIAN, TURN_SIGMA, TURN_LONGEST = 250, 0.9, 4_096
"""Sampled in one turn: a thought and a tool call. Chosen, so that contexts end at 15 to 40 K (SkyRL-Agent: 40 K context)."""

AGENTS_PER_NODE = 200
"""Episodes of agents side by side for each node that rolls out (as many as the share of rollout in all work makes):
``fleet.agents`` of the runners. Chosen: more than contexts fit into caches (10 K tokens on average, 1.9 M of room), so that a
worker that has room always finds one that waits."""

OBSERVATION_MEDIAN, OBSERVATION_SIGMA, OBSERVATION_LONGEST = 300, 1.0, 4_096
"""Tokens of a tool's answer. Chosen, as above."""

TOOL_MEDIAN_SECONDS, TOOL_SIGMA, TOOL_LONGEST_SECONDS = 1.0, 1.6, 300.0
"""A tool call: most read a file in under a second, some run a test suite for minutes: mean 3.4 s, 99th percentile 41 s. Chosen;
coding agents' traces show such a tail (tracelab.cs.washington.edu, tool_latency_distribution)."""

GROWTH = 3.0
"""How much longer responses get over a run whose workload shifts. Published: DAPO and DeepSeek-R1 show such growth; named by
our goal."""

MAX_STALENESS = 8
"""Steps that a token may be older than the step that trains on it. Published: 8 for mathematics and 4 for coding in AReaL
(arXiv 2505.24298), 8 in verl (v1_async_trainer.md) and prime-rl, 4 in TRL. Chosen: 8, for all modes that are asynchronous."""

RATIOS = (1 / 1, 1 / 1.7, 1 / 2.5, 1 / 4, 1 / 7)
"""Training over rollout work, the grid of our goal."""

# Scales of timed runs: what makes a fleet small enough for two cores and leaves its physics as it is.

TIME_SCALE = 30.0
"""Modelled seconds in a real one. Chosen: a cell of eight nodes takes minutes, and the waits below that are not scaled stay
small beside a step."""

AGENTIC_TIME_SCALE = 1 / 3
"""Of that of single turns. Chosen: a turn is a real second then, and what our services take for each is a small part of it."""

CARRIED_NODES = 24
"""Nodes that two cores carry at the given time scale; with more of them time goes slower. Chosen: three times the eight
of the grid; ``harness CPU`` of a cell says whether that holds."""

EPISODE_SCALE, MOST_EPISODE_SCALE = 16, 32
"""Equal episodes of the fleet that one timed episode stands for, and the most. Chosen: a device has 16 slots instead of 256, so
that two cores carry eight of them; with more than 32 it no longer has room for the longest sequences."""

TOKEN_SCALE = 32
"""Modelled tokens for each token of the data plane. Chosen: the longest answer is 1,024 of them then."""

OVERHEAD_TOKENS = 8
"""Of the tiny model's template, for each message with the opening of an answer behind it. Chosen: taken from what a turn
brings, so that contexts are about as long as they should be."""

IN_PLAY = 2
"""Episodes side by side for each slot of the fleet, where nothing else limits them. Chosen: more would only wait."""

CHURN_SECONDS = 60.0
"""Real ones between two deaths of a node where nodes come and go, each followed by one that joins. Named by our goal: each
minute. A simulated cell has as many modelled ones as a timed one of its kind: 1,800, of agents 600. With one of eight nodes
dying each 60 modelled seconds a gang of agents at 1:2.5 seldom lives as long as a step (none in 20,000 s, simulated)."""

# Waits of the services, in simulated runs: what a dead node leaves behind.

REDELIVERY_SECONDS = 10.0
"""After which the queue gives what a dead worker had to another: ``seamlessflow.bus.base:ACK_WAIT_SECONDS``."""

GONE_SECONDS = 10.0
"""A node that is gone keeps its roles for so long: the scheduler's own setting ``gone_seconds``."""

UNSAID_SECONDS = 1.0
"""A worker says its segments at least this often; what it sampled since is lost with it. Chosen."""

# Waits of the services, in timed runs: where one real second stands for many modelled ones, a wait that is not scaled lasts as
# many times longer as time is scaled (30 times, 10 times where agents play).

TICK_SECONDS = 5.0
"""Modelled seconds between two looks of the scheduler at the fleet that no event brings about, simulated and timed. Chosen: ten
times the scheduler's own, since nodes seldom change and each event makes it look anyway."""

LEAST_TICK_SECONDS = 0.1
"""Real seconds: no sooner does the scheduler of a timed run look again. Chosen: a look takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A constant of the services that is given in seconds."""

    where: str
    """``module:NAME``, or ``module:Settings.field``."""
    seconds: float
    is_scaled: bool
    """Whether it is modelled seconds in a timed run. If not, it is that many real ones, and its error is named."""
    effect: str


WAITS = (
    Wait(
        "seamlessflow_scheduler.config:SchedulerSettings.tick_seconds",
        0.5,
        True,
        "set to TICK_SECONDS, at least LEAST_TICK_SECONDS; without that a look in 15 modelled seconds, besides those of events",
    ),
    Wait(
        "seamlessflow_scheduler.policy.auto:NOTICE_SECONDS",
        0.5,
        True,
        "timed_policies; without that each node that joins a gang is called 15 modelled seconds too early: 0.3 % of node time",
    ),
    Wait(
        "seamlessflow_scheduler.policy.lending:UNMEASURED_SECONDS",
        2.0,
        True,
        "timed_policies; without that a gang waits up to 180 modelled seconds for its first batches, which warm up",
    ),
    Wait(
        "seamlessflow_scheduler.policy.lending:HOLD_SECONDS",
        5.0,
        False,
        "guards against a trainer that does not answer; none: a batch is announced within 0.3 real seconds of its last group",
    ),
    Wait(
        "seamlessflow_scheduler.policy.gang:RELEASE_SECONDS",
        10.0,
        False,
        "guards against a node that does not answer; only under churn: a gang may wait 300 modelled seconds for a dead member",
    ),
    Wait("seamlessflow_scheduler.fleet_state:STUCK_SECONDS", 10.0, False, "guards against a device that is kept; none"),
    Wait(
        "seamlessflow_scheduler.service:LEASES_SECONDS",
        3.0,
        False,
        "reading again; none while one scheduler leads",
    ),
    Wait(
        "seamlessflow_scheduler.config:SchedulerSettings.gone_seconds",
        10.0,
        False,
        "only under churn: a dead node keeps its roles for this and PRESENCE_TTL_SECONDS, so 15 real seconds of each death are "
        "one node's idle time (one of eight dying each minute: 3 % of node time)",
    ),
    Wait(
        "seamlessflow.runtime.presence:PRESENCE_TTL_SECONDS", 5.0, False, "as gone_seconds; JetStream knows whole seconds only"
    ),
    Wait("seamlessflow.runtime.presence:LEASE_POLL_SECONDS", 1.0, False, "only where a poke was lost; none seen"),
    Wait(
        "seamlessflow.bus.base:ACK_WAIT_SECONDS",
        10.0,
        False,
        "only under churn: what a dead worker had is gone on with after so long; its episodes are 300 modelled seconds later",
    ),
    Wait("seamlessflow_rollout_worker.weights.updater:POLL_SECONDS", 0.5, False, "only where a hint was lost; none seen"),
    Wait(
        "seamlessflow_rollout_worker.generations.delivery_handler:LATER_SECONDS",
        0.5,
        False,
        "only where a turn is asked for before its parent is stored: 5 modelled seconds of one agent; none seen",
    ),
    Wait(
        "seamlessflow.runtime.device_lock:POLL_SECONDS",
        0.005,
        False,
        "of each hand-over, each way: up to 0.15 modelled seconds",
    ),
)
"""Those that a timed run meets. A simulated one meets those of the policies and TICK_SECONDS alone. What services compute and
store takes real time, too, which no setting scales: of each hand-over, each turn of an agent (why their time scale is a third),
each step that is published. ``harness CPU`` and ``lag`` of a cell say how much."""
