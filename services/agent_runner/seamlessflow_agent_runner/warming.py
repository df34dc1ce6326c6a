"""What clients do when they are first used, done once in the zygote instead of in every agent.

The openai package imports its transport, its resources and its response models at the first call: about 25 ms of CPU for
each forked agent. Two calls that never leave this process pay that before the first fork.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any

_ANSWER: dict[str, Any] = {
    "id": "warm",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def warm_clients() -> None:
    """Warm what the agent's module imported. Another version of a client that does not fit is simply left cold."""
    if "openai" in sys.modules:
        with suppress(Exception):
            _warm_openai()


def _warm_openai() -> None:
    openai: Any = sys.modules["openai"]
    http: Any = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    answering = http.MockTransport(lambda request: http.Response(200, json=_ANSWER))
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused at once
        refusing = f"http://127.0.0.1:{unheard.getsockname()[1]}/v1"
        for http_client in (openai.DefaultHttpxClient(), openai.DefaultHttpxClient(transport=answering)):
            client = openai.OpenAI(base_url=refusing, api_key="none", max_retries=0, http_client=http_client)
            with client, suppress(openai.APIConnectionError):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
