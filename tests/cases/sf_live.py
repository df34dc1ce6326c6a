"""Helpers for cases against a gateway that runs (start.sh starts one with the tiny model). Standard library only.

    SF_GATEWAY=http://127.0.0.1:18471 SF_TOKEN=secret python3 <case>.py

Every case opens an episode of its own (env "free", reported reward), asks, and gives the episode up at the end.
With the tiny model every character of a prompt is one token, so usage.prompt_tokens tells what reached the model.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

GATEWAY = os.environ.get("SF_GATEWAY", "http://127.0.0.1:18471")
TOKEN = os.environ.get("SF_TOKEN", "secret")
PLACE = urlsplit(GATEWAY)


class Answer:
    def __init__(self, status, headers, raw, seconds):
        self.status, self.headers, self.raw, self.seconds = status, headers, raw, seconds

    @property
    def json(self):
        try:
            return json.loads(self.raw)
        except ValueError:
            return None

    @property
    def prompt_tokens(self):
        used = (self.json or {}).get("usage") or {}
        return used.get("prompt_tokens", used.get("input_tokens"))

    @property
    def error(self):
        found = (self.json or {}).get("error")
        return found.get("message") if isinstance(found, dict) else found

    @property
    def events(self):
        """Data of server-sent events."""
        return [
            json.loads(line[6:])
            for line in self.raw.decode().split("\n")
            if line.startswith("data: ") and line != "data: [DONE]"
        ]

    def __str__(self):
        return f"{self.status} {self.raw[:160]!r}"


def send(method, path, body=b"", headers=None, timeout=60):
    connection = http.client.HTTPConnection(PLACE.hostname, PLACE.port, timeout=timeout)
    began = time.monotonic()
    connection.request(method, path, body, headers or {})
    got = connection.getresponse()
    raw = got.read()
    connection.close()
    return Answer(got.status, dict(got.getheaders()), raw, time.monotonic() - began)


class Episode:
    def __init__(self, env="free"):
        got = send(
            "POST",
            "/episodes",
            json.dumps({"env": env, "prompt": "x", "wait_seconds": 60}),
            {"Authorization": f"Bearer {TOKEN}"},
            120,
        )
        if got.status != 201:
            print("no episode:", got)
            sys.exit(2)
        self.opened = got.json
        self.key = self.opened["api_key"]

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.end({"failed": "given up by a test"})

    def end(self, report):
        return send(
            "POST", f"/episodes/{self.opened['episode']}/reward", json.dumps(report), {"Authorization": f"Bearer {self.key}"}
        )

    def post(self, path, body, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return send("POST", path, raw, {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **headers})

    def chat(self, *messages, **fields):
        return self.post("/v1/chat/completions", {"model": "m", "messages": list(messages), "max_tokens": 4, **fields})


def user(content):
    return {"role": "user", "content": content}


def verdict(is_ok, what):
    print(("OK    " if is_ok else "FAULT ") + what)
    sys.exit(0 if is_ok else 1)
