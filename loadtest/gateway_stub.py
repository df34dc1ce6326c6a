"""An engine's HTTP server that answers at once: python -m loadtest.gateway_stub. Says its URL, and serves until killed.

The agents' bodies get ready-made answers: short ones a short one, long ones a long one. Below ``/ids`` the answer carries
token ids and logprobs as vLLM writes them, for peers that ask for and record them; below ``/v1`` it does not.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import cast

from loadtest.gateway_child import reply
from loadtest.gateway_words import text

LONG_BYTES = 20_000
"""A longer body is a long conversation's."""
NUM_VARIANTS = 8
SIZES = {"small": (500, 200), "large": (30_000, 1000)}
"""Prompt and completion tokens."""
FIRST_ID = 1000


class Stub(asyncio.Protocol):
    """One connection. Requests come whole, one after the other, with a Content-Length."""

    def __init__(self, answers: dict[tuple[bool, bool], list[bytes]]) -> None:
        self._answers, self._received, self._count = answers, bytearray(), 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        _, found, rest = head.partition(b"content-length:")
        whole = end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
        if len(self._received) < whole:
            return
        assert self._transport is not None
        variants = self._answers[b" /ids" in head[:40], whole > LONG_BYTES]
        self._transport.write(variants[self._count % NUM_VARIANTS])
        self._count += 1
        del self._received[:whole]


def _response(size: str, variant: int, *, with_ids: bool) -> bytes:
    num_prompt, num_answer = SIZES[size]
    content = text(num_answer - 1, variant)
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "finish_reason": "stop",
        "logprobs": None,
    }
    body: dict[str, object] = {
        "id": f"chatcmpl-{variant}",
        "object": "chat.completion",
        "created": 1,
        "model": "model",
        "choices": [choice],
        "usage": {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": num_prompt + num_answer},
    }
    if with_ids:
        words = [*(f" {word}" for word in content.split(" ")), "<|im_end|>"]
        choice["logprobs"] = {
            "content": [
                {"token": word, "logprob": -0.1234567, "bytes": list(word.encode()), "top_logprobs": []} for word in words
            ]
        }
        choice["token_ids"] = list(range(FIRST_ID, FIRST_ID + num_answer))
        body["prompt_token_ids"] = list(range(FIRST_ID, FIRST_ID + num_prompt))
    encoded = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(encoded), encoded)


async def main() -> None:
    answers = {
        (with_ids, size == "large"): [_response(size, variant, with_ids=with_ids) for variant in range(NUM_VARIANTS)]
        for with_ids in (False, True)
        for size in SIZES
    }
    server = await asyncio.get_running_loop().create_server(partial(Stub, answers), "127.0.0.1", 0)
    reply({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
