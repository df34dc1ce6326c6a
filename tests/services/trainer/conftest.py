"""Fixtures of the trainer's tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch

from tests.services.trainer.trainer_world import World, make_tiny_llama, run_document


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=int, metavar="SEED", help="play one order of late trainers")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; float32."""
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def make_world(tmp_path: Path, tiny_llama: Path) -> Callable[..., Awaitable[World]]:
    """A started run of the tiny model without a trainer; keywords are algorithm settings."""
    torch.manual_seed(1)

    async def make(model: Path = tiny_llama, **algorithm: object) -> World:
        return await World(tmp_path, run_document(model, **algorithm)).open()

    return make
