"""Run files: what is wrong is said with the key and what to set."""

import json
from pathlib import Path

import pytest
import tomli_w

from seamlessflow.config.run import load_run_config, parse_run_config
from seamlessflow.errors import ConfigError

GOOD = {
    "model": {"name": "m"},
    "agents": [{"env": "a", "entrypoint": "module:function"}],
    "algorithm": {"steps": 1},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"modle": {}}, r"modle: no such key; known here: .*model"),
        ({"algorithm": {"steps": 1, "learning_rat": 1}}, r"algorithm.learning_rat: no such key; known here: .*learning_rate"),
        ({"algorithm": {}}, r"algorithm.steps: missing"),
        ({"algorithm": {"steps": 0}}, r"algorithm.steps: .*greater than 0 \(got 0\)"),
        ({"agents": []}, r"agents: .*at least 1"),
        ({"agents": [{"env": "a"}]}, r"exactly one of entrypoint, command and external"),
        ({"agents": [{"env": "a", "external": True, "command": ["x"]}]}, r"exactly one of entrypoint, command and external"),
        ({"agents": [{"env": "a", "command": ["x"], "reward": "reported"}]}, r"only an external agent reports its reward"),
        ({"agents": [{"env": "a", "entrypoint": "no-colon"}]}, r"must be module:function"),
        ({"agents": [{"env": "a b", "entrypoint": "m:f"}]}, r"subject token"),
        ({"agents": GOOD["agents"] * 2}, r"env of its own"),
        ({"fleet": {"shards": 17}}, r"fleet.shards: .*less than or equal to 16 \(got 17\)"),
        ({"fleet": {"buckets": 0}}, r"fleet.buckets: .*greater than or equal to 1"),
        ({"tasks": {"question_template": "Go!"}}, r"tasks.question_template: .*must hold \{question\}"),
        ({"fleet": {"policy": "magic"}}, r"fleet.policy: .*multiplexed"),
        ({"lora": {"rank": 0}}, r"lora.rank: .*greater than 0 \(got 0\)"),
        ({"lora": {"r": 8}}, r"lora.r: no such key; known here: alpha, dropout, rank, target_modules"),
        ({"lora": {"dropout": 0.1}}, r"lora.dropout: .*must be 0, or left out: .*not those of what sampled"),
        (
            {"lora": {"target_modules": "q_proj"}},
            r'lora.target_modules: .*must be "all-linear" or a list .*\["q_proj", "v_proj"\]',
        ),
        ({"lora": {"target_modules": []}}, r'lora.target_modules: .*must be "all-linear" or a list'),
        ({"lora": {"target_modules": ["all-linear"]}}, r'lora.target_modules: .*"all-linear" stands alone, without brackets'),
    ],
)
def test_a_mistake_is_named(change, said):
    """Every message holds the key and what would be right."""
    with pytest.raises(ConfigError, match=said):
        parse_run_config({**GOOD, **change})


def test_a_wrong_agent_is_one_problem():
    """The list it is in is not called too short because of it."""
    with pytest.raises(ConfigError) as refused:
        parse_run_config({**GOOD, "agents": [{"env": "a b", "command": ["true"]}]})

    assert len(str(refused.value).splitlines()) == 2 and "agents.0.env" in str(refused.value)


def test_a_missing_file_and_broken_toml_are_told_apart(tmp_path):
    """Each says the file's name."""
    with pytest.raises(ConfigError, match="no such file"):
        load_run_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 1")
    with pytest.raises(ConfigError, match="not TOML"):
        load_run_config(broken)


def test_what_is_no_readable_text_is_said(tmp_path):
    """A folder, and a file in another encoding."""
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be read: .*directory"):
        load_run_config(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes('name = "caf\xe9"'.encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8 at byte 11"):
        load_run_config(latin)


@pytest.mark.parametrize(
    "text", ["algorithm = 3", "algorithm = []", "model = 'm'\nagents = 7\nalgorithm.steps = 'x'", "agents = [1]"]
)
def test_a_section_of_the_wrong_type_is_named(text, tmp_path):
    """Also when the command line sets a key of it."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    for overrides in ({}, {"algorithm.steps": 2}):
        with pytest.raises(ConfigError, match=text.split()[0]):
            load_run_config(path, overrides)


@pytest.mark.parametrize("path", sorted(Path("deploy/demo").glob("*.toml")), ids=lambda p: p.name)
def test_the_demos_run_files_are_valid(path):
    """What the README tells people to start can be started."""
    assert load_run_config(path).algorithm.steps > 0


def test_a_document_survives_the_journal():
    """RunRequested carries JSON; what comes back is the same configuration."""
    config = parse_run_config(GOOD)

    assert parse_run_config(json.loads(json.dumps(config.document))) == config


def test_a_document_has_no_key_that_says_nothing(tmp_path):
    """Older services refuse keys that they do not know. Changes of weights are for runs whose file was read by this version."""
    old = parse_run_config(GOOD)
    assert "weights" not in old.document and "long_tail" not in old.document["fleet"] and old.weights.full_every == 1
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps(GOOD))
    new = load_run_config(file)
    assert new.document["weights"] == {"full_every": 10} and parse_run_config(new.document) == new
    assert "weights" not in load_run_config(file, {"weights.full_every": 1}).document


def test_adapters_are_trained_only_where_a_run_asks_for_them():
    """An older service refuses a document with the section, and needs to see none where there is none."""
    assert parse_run_config(GOOD).lora is None and "lora" not in parse_run_config(GOOD).document
    lora = parse_run_config({**GOOD, "lora": {"target_modules": ["q_proj", "v_proj"]}})

    assert (lora.lora.rank, lora.lora.alpha, lora.lora.target_modules) == (16, 32, ("q_proj", "v_proj"))
    assert parse_run_config(json.loads(json.dumps(lora.document))) == lora
    assert parse_run_config({**GOOD, "lora": {}}).lora.target_modules == "all-linear"
