"""The whole system once, small: ``./task demo:tiny`` as people run it, and what can be done with a finished run."""

import json
import subprocess
import sys

import pytest

from .conftest import ROOT, environment

pytestmark = pytest.mark.system

LOAD = """
import sys, transformers
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
transformers.AutoTokenizer.from_pretrained(sys.argv[1])
"""
TINY = ROOT / "deploy" / "demo" / "tiny.toml"


def test_an_agent_learns_and_everything_adds_up(train, seamlessflow):
    """Bad before, good after; the ledger balances; the replayed manager says what was said; the weights load."""
    training = train(TINY, "tiny")
    summary = training.finish(400)

    before = summary["evaluation"]["before"]["mean_reward"]["calculator"]
    after = summary["evaluation"]["after"]["mean_reward"]["calculator"]
    assert before <= 0.5
    assert after >= 0.85  # the README's figure is the mean of three seeds; one seed may fall a little short of it
    assert after - before >= 0.35
    assert summary["tasks"]["held_out"] == 60
    tokens = summary["ledger"]["tokens"]
    assert tokens["in_flight"] == 0
    assert tokens["trained"] > 0
    assert seamlessflow("ledger", "tiny").returncode == 0

    replayed = seamlessflow("replay", "tiny", "--service", "trajectory-manager")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr

    assert (training.folder / "report.html").stat().st_size > 10_000
    steps = [json.loads(line) for line in (training.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == summary["steps"]
    loaded = subprocess.run([sys.executable, "-c", LOAD, str(training.folder / "model")], env=environment(), check=False)
    assert loaded.returncode == 0
