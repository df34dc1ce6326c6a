"""``doctor --engine``: what is checked comes from options or a run file, and whatever goes wrong is one clear message."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from seamlessflow.cli import app
from seamlessflow.cli.doctor import MODEL, _wanted
from seamlessflow.cli.doctor_engine import Wanted, _Place, document_of, table_of
from seamlessflow.engine_check import Check
from seamlessflow.errors import ConfigError, SeamlessFlowError

RUN = """
model = { name = "some-model", engine = "continuous_batching", dtype = "bfloat16", max_context_tokens = 333 }
agents = [{ env = "a", command = ["true"], reward = "operator:add" }]
algorithm = { steps = 4 }
"""


def wanted(
    engine: str | None = None, run_file: Path | None = None, model: str | None = None, dtype: str | None = None
) -> Wanted:
    return _wanted(engine, run_file, model, dtype, 16, 0.8, None, 60.0)


def model_of(asked: Wanted) -> dict[str, object]:
    document = document_of(asked)
    assert isinstance(document["model"], dict)
    return document["model"]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


def test_without_a_run_file_a_small_real_model_is_checked_in_its_own_precision():
    """Sampled and trained at one temperature, and nothing is learned."""
    document = document_of(wanted("transformers"))

    assert model_of(wanted("transformers")) | {"name": MODEL, "engine": "transformers", "dtype": "auto"} == document["model"]
    assert document["sampling"]["temperature"] == 0.8 and document["algorithm"]["learning_rate"] == 0  # type: ignore[index]


def test_a_run_file_says_what_is_checked_and_options_say_otherwise(run_file: Path):
    """Its engine, too, unless another is named: to hold two engines against one run."""
    assert model_of(wanted(run_file=run_file))["engine"] == "continuous_batching"
    asked = wanted("transformers", run_file, dtype="float32")
    assert (asked.engine, asked.model) == ("transformers", "some-model")
    assert model_of(asked) | {"engine": "transformers", "dtype": "float32", "max_context_tokens": 333} == model_of(asked)
    assert (
        wanted(run_file=run_file, model="other").model == "other" == model_of(wanted(run_file=run_file, model="other"))["name"]
    )


def test_options_of_a_run_files_engine_are_not_handed_to_another(run_file: Path):
    """An alarm says: try the transformers engine beside it. That one takes no options, and would refuse them."""
    run_file.write_text(RUN.replace('"continuous_batching"', '"vllm", engine_options = { block_size = 32 }'))

    assert model_of(wanted(run_file=run_file))["engine_options"] == {"block_size": 32}
    assert not model_of(wanted("transformers", run_file)).get("engine_options")


@pytest.mark.parametrize("options", ["--model tiny-calculator", "--dtype float32 --tokens 64", "--python /usr/bin/python3"])
def test_options_of_the_self_check_without_an_engine_are_refused(options: str):
    """Else the other doctor would answer, and all would seem right."""
    done = CliRunner().invoke(app, ["doctor", *options.split()])

    assert done.exit_code == 2 and "--engine" in done.output and options.split()[0] in done.output


def test_an_engine_there_is_none_of_is_refused_with_those_there_are():
    """Before a process is started."""
    with pytest.raises(ConfigError, match="transformers"):
        document_of(wanted("no-such-engine"))


def test_a_process_that_fails_is_told_with_its_last_words_and_one_that_hangs_is_stopped(tmp_path: Path):
    """Who it was, and what it said."""
    place = _Place(tmp_path, Console(file=io.StringIO()), time.monotonic() + 60)

    with pytest.raises(SeamlessFlowError, match=r"engine: ended with 3; its last words:\n  no kernel for this"):
        place.run(
            "engine", Path(sys.executable), ["-c", "import sys; print('no kernel for this', file=sys.stderr); sys.exit(3)"]
        )
    with pytest.raises(SeamlessFlowError, match="engine: /no/such/python cannot be run: No such file"):
        place.run("engine", Path("/no/such/python"), ["-c", ""])
    late = _Place(tmp_path, Console(file=io.StringIO()), time.monotonic())
    with pytest.raises(SeamlessFlowError, match="engine: not done in time, and stopped"):
        late.run("engine", Path(sys.executable), ["-c", "import time; time.sleep(60)"])


def test_the_table_says_of_each_check_what_was_found_and_allowed():
    """What is only told has no verdict."""
    screen = io.StringIO()
    checks = [Check("a", "1 of 2", "2 of 2", False), Check("b", "0", "0", True), Check("c", "3 s", "", None)]
    Console(file=screen, width=100).print(table_of("some engine", checks))

    rows = [line.split("│")[1:5] for line in screen.getvalue().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["a", "1 of 2", "2 of 2", "WRONG"],
        ["b", "0", "0", "ok"],
        ["c", "3 s", "", ""],
    ]


@pytest.mark.slow
@pytest.mark.system
def test_the_command_checks_a_real_engine_and_says_so_with_its_exit_code(tmp_path: Path):
    """Both processes, a real (tiny) model, the whole table, and nothing wrong."""
    pytest.importorskip("torch")
    from seamlessflow.models import make_tiny

    model = make_tiny(tmp_path / "tiny", 0, warm_start_steps=1)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "seamlessflow.cli",
            "doctor",
            "--engine",
            "transformers",
            "--model",
            str(model),
            "--tokens",
            "16",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert "a step at learning rate 0" in done.stdout and "WRONG" not in done.stdout
