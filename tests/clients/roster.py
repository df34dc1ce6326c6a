"""Which clients are tested, what the scripted model says to each, and which tree its episode must leave.

A linear tool episode is one question, one tool call, one answer: two calls, and ideally one root with one chain. Where a
client's tree is another, ``because`` says why: it changes what the model is shown, and exact prefix or fork is the rule.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients import environments
from tests.clients.scripted_model import THOUGHT, Line, call
from tests.clients.task import ANSWER

PROGRAMS = Path(__file__).parent / "programs"
CALCULATES = Line("", call("calculator", {"a": 2, "b": 3}))
LINEAR = (Line(r"^tool\n.*5", THOUGHT + ANSWER), CALCULATES)
SHELL_PRINTED_5 = r"(?m)\Atool\n.*^5$"


@dataclass(frozen=True)
class Client:
    """One program against the data plane."""

    name: str
    environment: str
    """Of ``environments``; ``npm`` for a command from there."""
    program: tuple[str, ...]
    """File in ``programs`` and its words behind the prompt; for npm the command line, where ``{prompt}`` and ``{url}`` are
    replaced."""
    lines: tuple[Line, ...] = LINEAR
    stops: tuple[str, ...] = ()
    """Of its first turns: what ends each of them, for all that the script says behind it."""
    num_calls: int = 2
    num_roots: int = 1
    num_chains: int = 1
    num_forks: int = 0
    because: str = ""
    """Why it is not one root with one chain."""
    settings: dict[str, str] = field(default_factory=dict)
    """Environment variables; ``{url}`` is replaced."""

    def command(self, url: str) -> tuple[str, ...]:
        """As an agent's section of the run has it. ``url``: the endpoint without /v1."""
        if self.environment == environments.NPM:
            binary, *words = self.program
            argv = [str(environments.binary_of(binary)), *(word.replace("{url}", url) for word in words)]
        else:
            file, *words = self.program
            argv = [str(environments.python_of(self.environment)), str(PROGRAMS / file), "{prompt}", *words]
        return ("env", f"OPENAI_BASE_URL={url}/v1", f"ANTHROPIC_BASE_URL={url}", *argv)

    def environment_of(self, url: str) -> dict[str, str]:
        return {name: value.replace("{url}", url) for name, value in {"NO_COLOR": "1", **self.settings}.items()}


CLIENTS = (
    Client("openai-chat", "openai", ("openai_chat.py",)),
    Client("openai-chat-stream", "openai", ("openai_chat.py", "stream")),
    Client("openai-responses", "openai", ("openai_responses.py",)),
    Client("openai-responses-stream", "openai", ("openai_responses.py", "stream")),
    Client("openai-completions", "openai", ("openai_completions.py",), lines=(Line("", ANSWER),), num_calls=1),
    Client("openai-completions-stream", "openai", ("openai_completions.py", "stream"), lines=(Line("", ANSWER),), num_calls=1),
    Client("openai-logprobs", "openai", ("openai_logprobs.py",), lines=(Line("", ANSWER),), num_calls=1),
    Client("anthropic", "anthropic", ("anthropic_messages.py",)),
    Client("anthropic-stream", "anthropic", ("anthropic_messages.py", "stream")),
    Client("openai-agents", "openai-agents", ("openai_agents_sdk.py",)),
    Client("openai-agents-stream", "openai-agents", ("openai_agents_sdk.py", "stream")),
    Client("openai-agents-chat", "openai-agents", ("openai_agents_sdk.py", "chat")),
    Client("openai-agents-chat-stream", "openai-agents", ("openai_agents_sdk.py", "chat", "stream")),
    Client("langchain", "langchain", ("langchain_agent.py",)),
    Client("pydantic-ai", "pydantic-ai", ("pydantic_ai_agent.py",)),
    Client(
        "smolagents",
        "smolagents",
        ("smolagents_agent.py",),
        lines=(
            Line(r"^(tool|user)\n.*Observation.*5", call("final_answer", {"answer": ANSWER})),
            Line("", f"{CALCULATES.says}\nObservation: 6, or so the model imagines."),
        ),
        stops=("Observation:",),
        num_roots=2,
        num_chains=2,
        num_forks=1,
        because="it writes its earlier tool calls anew, as text, so no turn is a prefix of the next",
    ),
    Client(
        "autogen",
        "autogen",
        ("autogen_agent.py",),
        num_roots=2,
        num_chains=2,
        num_forks=1,
        because="its reflection offers no tools, which stand at the very beginning of the prompt",
    ),
    Client("litellm", "litellm", ("litellm_chat.py",), settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True"}),
    Client(
        "mini-swe-agent",
        "mini-swe-agent",
        ("mini_swe_agent.py",),
        lines=(
            Line(r'^tool\n.*"5\\n"', call("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{ANSWER}'"})),
            Line("", call("bash", {"command": "echo $((2 + 3))"})),
        ),
        settings={"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Client(
        "claude-code",
        environments.NPM,
        ("claude", "-p", "{prompt}", "--permission-mode", "bypassPermissions", "--max-turns", "4"),
        lines=(
            Line(SHELL_PRINTED_5, THOUGHT + ANSWER),
            Line("", call("Bash", {"command": "echo $((2 + 3))", "description": "Add 2 and 3"})),
        ),
        settings={
            "ANTHROPIC_MODEL": "any-model",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        },
    ),
    Client(
        "codex",
        environments.NPM,
        (
            "codex",
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            *("-c", 'model_provider="ours"'),
            *("-c", 'model="any-model"'),
            *("-c", 'model_providers.ours={name="ours",base_url="{url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}'),
            "{prompt}",
        ),
        lines=(
            Line(SHELL_PRINTED_5, THOUGHT + ANSWER),
            Line("", call("exec_command", {"cmd": "echo $((2 + 3))"})),
        ),
    ),
    Client(
        "opencode",
        environments.NPM,
        ("opencode", "run", "--model", "ours/any-model", "{prompt}"),
        lines=(
            Line("", "Adding two numbers", amid="title"),
            Line(SHELL_PRINTED_5, THOUGHT + ANSWER),
            Line("", call("bash", {"command": "echo $((2 + 3))", "description": "Adds 2 and 3"})),
        ),
        num_calls=3,
        num_roots=2,
        num_chains=2,
        because="it asks for a title of the conversation as well",
        settings={
            "OPENCODE_CONFIG_CONTENT": json.dumps(
                {
                    "provider": {
                        "ours": {
                            "npm": "@ai-sdk/openai-compatible",
                            "options": {"baseURL": "{url}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
                            "models": {"any-model": {"limit": {"context": 200_000, "output": 8_000}}},
                        }
                    }
                }
            ),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
    ),
)
