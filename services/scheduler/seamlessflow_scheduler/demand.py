"""What a run wants of the fleet, from its document, how far it has come and what was measured of it. Pure."""

from __future__ import annotations

from seamlessflow.run_config import RunConfig
from seamlessflow.tag_rules import parse_rule

from .measures import Measures
from .policy import Demand
from .progress import Progress


def demand_of(config: RunConfig, progress: Progress, measures: Measures) -> Demand:
    """The same run document, journal and times give the same demand, whoever asks."""
    fleet, algorithm = config.fleet, config.algorithm
    return Demand(
        progress.run,
        fleet.policy,
        progress.wants_train,
        config.envs,
        fleet.shards,
        config.work_tags,
        fleet.buckets,
        has_classes=config.has_classes,
        version_slots=config.version_slots,
        tag_rules=tuple((rule.tag, parse_rule(rule.when)) for rule in fleet.tag_rules),
        needs={agent.env: agent.needs for agent in config.agents if agent.needs is not None},
        train_nodes=fleet.train_nodes,
        groups_per_step=algorithm.groups_per_step,
        groups_ready=progress.groups_ready,
        max_staleness=algorithm.max_staleness,
        rates=measures.rates,
        settled_epochs=progress.settled_epochs,
    )
