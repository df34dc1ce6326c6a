"""mini-swe-agent with its own configuration and this machine's shell: prints what it submits."""

import os
import sys

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
config["agent"].pop("mode")  # of the interactive agent
config["model"]["model_kwargs"] |= {"api_base": os.environ["OPENAI_BASE_URL"]}
config["model"]["cost_tracking"] = "ignore_errors"
model = LitellmModel(model_name="openai/any-model", **config["model"])
agent = DefaultAgent(model, LocalEnvironment(**config["environment"]), **config["agent"])
print(agent.run(sys.argv[1])["submission"])
