"""Errors of the gateway, in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from seamlessflow.contracts import CallError

_TYPES = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error"}


class ApiError(Exception):
    """A request is refused. A retry gives the same answer, which ``x-should-retry`` tells the client."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.most_tokens: int | None = None
        self.got_tokens: int | None = None
        """Tokens of a prompt that is too long; ``most_tokens``: as many would fit. None: another error."""

    @classmethod
    def of(cls, error: CallError) -> ApiError:
        """The manager's refusal."""
        refusal = cls(error.status, error.message, code=error.code)
        refusal.most_tokens, refusal.got_tokens = error.most_tokens, error.got_tokens
        return refusal

    def body(self) -> dict[str, Any]:
        """In the form of OpenAI's API."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, body: dict[str, Any] | None = None) -> web.Response:
        """The HTTP response. ``body``: in another dialect's form."""
        # The official clients retry 409 and 5xx by themselves unless told that it is of no use.
        return web.json_response(body or self.body(), status=self.status, headers={"x-should-retry": "false"})


def bad_request(message: str, param: str | None = None, *, code: str = "invalid_request") -> ApiError:
    """400 that names the field and says what to change."""
    return ApiError(400, message, code=code, param=param)


def unsupported(message: str, param: str) -> ApiError:
    """400 for a feature that is not implemented: refused rather than ignored."""
    return bad_request(message, param, code="unsupported_parameter")


def episode_over() -> ApiError:
    """409. A new one each time: an exception that is raised again keeps the frames of every time before."""
    return ApiError(409, "this episode is over; no further calls are answered", code="episode_over")
