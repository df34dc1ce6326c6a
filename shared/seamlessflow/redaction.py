"""Keeping a password out of logs and out of other people's sight."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """A URL, or several with commas between them, fit for a log: user name and password left out."""
    return ",".join(_one_without(each) for each in url.split(","))


def _one_without(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whatever it was before; a reader sees the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)
