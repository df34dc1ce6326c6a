"""What a rollout-worker may be told beyond the shared settings; each by ``SEAMLESSFLOW_*``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import SecretStr, field_validator
from pydantic_settings import NoDecode

from seamlessflow.device_settings import DeviceSettings
from seamlessflow.secrecy import without_password


class WorkerSettings(DeviceSettings):
    """Settings of one rollout-worker."""

    torch_threads: int | None = None
    """Threads of the engine's arithmetic. None: all cores."""
    stall_seconds: float = 180.0
    """An engine that holds generations and samples nothing for this long counts as dead; the process exits."""
    fetch_seconds: float = 900.0
    """How long one version of the weights may take to come from the store."""
    engine_urls: Annotated[tuple[str, ...], NoDecode] = ()
    """Servers of the engine "remote", with commas between them: ``http://10.0.0.1:8000,http://10.0.0.2:8000``. They are this
    worker's alone: two workers would load weights under each other's requests."""
    engine_api_key: SecretStr | None = None
    """Sent to those servers as ``Authorization: Bearer``. None: they ask for none."""

    @field_validator("engine_urls", mode="before")
    @classmethod
    def _split_urls(cls, given: Any) -> Any:
        return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given

    @field_validator("engine_urls")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [url for url in urls if not url.startswith(("http://", "https://"))]:
            raise ValueError(f"{without_password(wrong[0])} must begin with http:// or https://")
        return tuple(dict.fromkeys(url.rstrip("/") for url in urls))
