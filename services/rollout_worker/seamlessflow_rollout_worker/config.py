"""What a rollout-worker may be told beyond the shared settings; each by ``SEAMLESSFLOW_*``."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from seamlessflow.config.node_settings import DeviceSettings
from seamlessflow.redaction import without_password


class WorkerSettings(DeviceSettings):
    """Settings of one rollout-worker."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)  # a refused value may hold a password

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
        for url in urls:
            _check_url(url)
        return tuple(dict.fromkeys(url.rstrip("/") for url in urls))

    @field_validator("engine_api_key")
    @classmethod
    def _is_the_only_one(cls, key: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if key is not None and any("@" in urlsplit(url).netloc for url in info.data.get("engine_urls", ())):
            raise ValueError("SEAMLESSFLOW_ENGINE_URLS holds a user and a password already: a request can carry one of both")
        return key


def _check_url(url: str) -> None:
    """Raises ValueError, without the URL's password, for what no request could be sent to."""
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, an address that is none
        raise ValueError("holds a URL that cannot be used: expected http://host:port") from None
    if not usable or parts.query or parts.fragment:
        raise ValueError(f"{without_password(url)} must be http://host:port, perhaps with a path")
