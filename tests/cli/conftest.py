"""For tests of the command."""

import pytest

from tests.cli.cli_builders import Command


@pytest.fixture
def start():
    """Start a command that ends with the test, if it has not ended before."""
    started: list[Command] = []

    def begin(cwd, *arguments) -> Command:
        started.append(Command(cwd, *arguments))
        return started[-1]

    yield begin
    for command in started:
        command.process.kill()
        command.process.wait()
