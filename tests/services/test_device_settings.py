"""What nodes say of themselves: tags of their operator, and hardware that is told or found."""

from __future__ import annotations

import sys
import types

import pytest
from pydantic import ValidationError

from seamlessflow.config import node_settings
from seamlessflow.contracts import Hardware
from seamlessflow_agent_runner.config import RunnerSettings
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_trainer.config import TrainerSettings


@pytest.mark.parametrize("kind", [WorkerSettings, TrainerSettings, RunnerSettings])
def test_tags_are_words_with_commas_between(kind, monkeypatch):
    """Announced beside what the service can do."""
    monkeypatch.setenv("SEAMLESSFLOW_TAGS", "h800, prefill,h800")

    assert kind().announced("rollout") == ("rollout", "h800", "prefill")
    monkeypatch.setenv("SEAMLESSFLOW_TAGS", "")
    assert kind().announced("rollout") == ("rollout",)


@pytest.mark.parametrize("tags", ["H800", "h800+prefill", "a b", "rollout", "train"])
def test_what_is_no_tag_or_a_role_is_refused(tags, monkeypatch):
    """A role is played, not claimed."""
    monkeypatch.setenv("SEAMLESSFLOW_TAGS", tags)

    with pytest.raises(ValidationError, match=r"a tag is|announced by the service itself"):
        WorkerSettings()


def test_hardware_is_what_was_told_and_for_the_rest_what_is_found(monkeypatch):
    """Operations and bandwidth of a device are in data sheets, its memory is here."""
    monkeypatch.setenv("SEAMLESSFLOW_HARDWARE__FLOPS", "9.9e14")
    monkeypatch.setenv("SEAMLESSFLOW_HARDWARE__DEVICE", "H800")
    found = WorkerSettings().found_hardware("cpu")

    assert (found.device, found.flops, found.bandwidth_bytes) == ("H800", 9.9e14, 0.0)
    assert found.memory_bytes > 1e8


def test_without_a_driver_torch_is_not_even_loaded(monkeypatch, tmp_path):
    """A worker with a scripted engine needs none."""
    monkeypatch.setattr(node_settings, "_CUDA_DRIVER", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "torch", None)

    assert node_settings.found().device == "cpu"


def test_with_a_driver_the_device_is_asked_by_torch(monkeypatch, tmp_path):
    """Its name and its memory; the one that was named, where there are several."""
    asked: list[str] = []

    def properties(device: str) -> types.SimpleNamespace:
        asked.append(device)
        return types.SimpleNamespace(name="NVIDIA H200", total_memory=150_754_820_096)

    cuda = types.SimpleNamespace(is_available=lambda: True, get_device_properties=properties)
    (tmp_path / "0000:01:00.0").mkdir()
    monkeypatch.setattr(node_settings, "_CUDA_DRIVER", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))

    assert node_settings.found() == Hardware(device="NVIDIA H200", memory_bytes=150_754_820_096)
    node_settings.found("cuda:1")
    assert node_settings.found("cpu").device == "cpu" and asked == ["cuda", "cuda:1"]
