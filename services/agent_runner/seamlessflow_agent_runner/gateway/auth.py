"""Authorisation: the gateway's token opens and ends any episode; an episode's own key ends only that one."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from seamlessflow.errors import ConfigError

from .api_errors import ApiError
from .sessions import keys_of

SETTING = "SEAMLESSFLOW_GATEWAY_TOKEN"
PROXY_HEADERS = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")
"""Headers that proxies add. With one of them, a connection from this machine may be for a client anywhere."""


class Access:
    """Checks of requests about episodes. ``token`` None: a gateway on a loopback address needs none; others open no episodes.

    host: where it listens. public_url: its address for agents. Raises ConfigError for a public one without a token.
    """

    def __init__(self, token: str | None, host: str, public_url: str | None = None) -> None:
        if token is None and public_url is not None and not is_loopback(_host_of(public_url)):
            raise ConfigError(
                "SEAMLESSFLOW_GATEWAY_URL lets agents elsewhere reach this gateway, so any program there could open episodes: "
                f"set {SETTING} to a secret for those that may"
            )
        self._token, self._host = token, host

    def check_may_open(self, headers: Mapping[str, str]) -> None:
        """Raises ApiError 401 or 403."""
        if self._token is not None:
            if not self.has_token(headers):
                raise ApiError(401, f"opening an episode needs the gateway's token ({SETTING}) as Bearer", code="invalid_token")
        elif not is_loopback(self._host):
            what = f"this gateway listens on {self._host}: set {SETTING} to let agents that have it open episodes"
            raise ApiError(403, what, code="no_token_set")
        elif "Origin" in headers:  # browsers add it: a web page must not reach through to this machine
            raise ApiError(403, f"web pages need the gateway's token: set {SETTING}", code="no_token_set")
        elif found := next((name for name in PROXY_HEADERS if name in headers), None):
            what = f"this came through a proxy ({found}), which needs the gateway's token: set {SETTING}"
            raise ApiError(403, what, code="no_token_set")

    def check_may_end(self, headers: Mapping[str, str], key: str | None) -> None:
        """``key``: of the episode, None when it is not known. Raises ApiError 401, or 404 with the gateway's token."""
        if self.has_token(headers):
            if key is None:
                raise ApiError(404, "no such episode was handed out here, or long ago", code="unknown_episode")
            return
        if key is None or not _brings(headers, key):
            what = "unknown episode, or neither its API key nor the gateway's token: give api_key of POST /episodes as Bearer"
            raise ApiError(401, what, code="invalid_api_key")

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Whether a request brings the gateway's token."""
        return self._token is not None and _brings(headers, self._token)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_of(url: str) -> str:
    """Empty for what is no URL."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _brings(headers: Mapping[str, str], secret: str) -> bool:
    """Whether one of a request's keys is the secret, in constant time."""
    expected = secret.encode()
    return any(secrets.compare_digest(key.encode(errors="surrogatepass"), expected) for key in keys_of(headers))
