"""The project's folder, for what stands beside the packages: agents of the demo, benchmarks, an environment for vLLM."""

from __future__ import annotations

from pathlib import Path


def checkout_root() -> Path:
    """The working directory where that is a checkout, else the checkout this library is installed from, else the working
    directory: with installed packages nothing needs a checkout, and what is named relative to it lies where one is."""
    for candidate in (Path.cwd(), *Path(__file__).resolve().parents):
        if (candidate / "services" / "scheduler" / "pyproject.toml").is_file():
            return candidate
    return Path.cwd()
