"""A whole run that trains adapters: it learns as any other, and what its trainer writes is small."""

import json
import subprocess
import sys
import tomllib

import pytest
import tomli_w

from .conftest import ROOT, environment

pytestmark = pytest.mark.system

LOAD = """
import sys, peft, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
peft.PeftConfig.from_pretrained(sys.argv[1] + "/adapter")
assert type(model).__name__.startswith("Llama"), type(model)
"""
ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}


def lora_run(folder, **sections):
    """The tiny demo with adapters; ``sections`` change it further."""
    document = tomllib.loads((ROOT / "deploy" / "demo" / "tiny.toml").read_text())
    changes = {"lora": {"rank": 16, "alpha": 32}, **sections}
    for section, values in changes.items():
        document[section] = {**document.get(section, {}), **values}
    path = folder / "lora.toml"
    path.write_text(tomli_w.dumps(document))
    return path


def sizes(folder):
    """Bytes of each file below a folder, by its path in it."""
    return {str(each.relative_to(folder)): each.stat().st_size for each in folder.rglob("*") if each.is_file()}


def test_a_short_lora_run_works_from_one_end_to_the_other(train, seamlessflow, tmp_path):
    """Adapters alone are published, checkpoints hold nothing else, and what is left loads as an ordinary model."""
    algorithm = {"steps": 3, "groups_per_step": 4, "group_size": 4, "learning_rate": 5e-3}
    run = lora_run(tmp_path, algorithm=algorithm, tasks={"max_held_out": 5}, fleet={"slots": 16, "agents": 16})
    training = train(run, "lora")
    summary = training.finish(300)
    steps = [json.loads(line) for line in (training.folder / "metrics.jsonl").read_text().splitlines()]
    store = training.folder / "store" / "lora"
    versions, bases = sizes(store / "weights"), sizes(store / "base")

    assert summary["steps"] == 3 and summary["ledger"]["tokens"]["in_flight"] == 0
    # A generation that kept its cache over an update counts with more; the others differ by float32's rounding.
    assert min(step["logprob_gap"] for step in steps if "logprob_gap" in step) < 1e-5
    assert {path.split("/")[1] for path in versions} == ADAPTER_FILES
    assert {path.split("/")[1] for path in bases} == {"model.safetensors", "manifest.json"} and len(bases) == 2
    checkpoint = next(size for path, size in sizes(store / "checkpoints").items() if path.endswith("model.safetensors"))
    adapter = next(size for path, size in versions.items() if path.endswith("adapter_model.safetensors"))
    assert checkpoint == adapter < sum(bases.values()) / 2
    assert seamlessflow("ledger", "lora").returncode == 0
    loaded = subprocess.run([sys.executable, "-c", LOAD, str(training.folder / "model")], env=environment(), check=False)
    assert loaded.returncode == 0


@pytest.mark.slow
def test_an_agent_learns_by_adapters_alone(train, tmp_path):
    """Bad before, good after, as with all weights (test_demo_tiny), at a rate ten times as high."""
    summary = train(lora_run(tmp_path, algorithm={"learning_rate": 5e-3}), "lora").finish(900)

    before = summary["evaluation"]["before"]["mean_reward"]["calculator"]
    after = summary["evaluation"]["after"]["mean_reward"]["calculator"]
    assert before <= 0.5 and after >= 0.7
