"""Siblings of l03 (sozercan/vekil#6: compressed bodies): requests that are wrong before any handler sees them. In-process gateway, no key.

docs/endpoint.md: "Errors that end a call have the form and the words of the API that was spoken"; operations.md: logs are "one JSON object
a line". Expected: 4xx as JSON in the dialect's form, no traceback in the log, no advice to install packages.
"""

import asyncio
import contextlib
import io
import json
import logging

from sf_unit import verdict

from seamlessflow_agent_runner.gateway.http_server import Gateway
from seamlessflow_agent_runner.gateway.sessions import Sessions

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CASES = {
    "no key (control)": HEAD + b"Content-Length: 2\r\n\r\n{}",
    "Content-Encoding: zstd": HEAD + b"Content-Encoding: zstd\r\nContent-Length: 2\r\n\r\n{}",
    "Content-Encoding: br": HEAD + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
    "Content-Encoding: gzip, not gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "a header of 100 kB": HEAD + b"X: " + b"y" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "a path of 100 kB": b"POST /v1/messages/" + b"y" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "both lengths": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "TLS to a plain port": bytes.fromhex("16030100f8010000f40303") + b"\0" * 50,
    "no HTTP at all": b"hello\r\n\r\n",
    "Content-Length: abc": HEAD + b"Content-Length: abc\r\n\r\n{}",
}
bad = []


async def main():
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.INFO, force=True)
    gateway = Gateway(Sessions(), None)
    await gateway.open("127.0.0.1", 0)
    port = int(gateway.base_url.split(":")[2].split("/")[0])
    for name, raw in CASES.items():
        log.truncate(0)
        log.seek(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        got = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(3):
                got = await reader.read()
        writer.close()
        head, _, body = got.partition(b"\r\n\r\n")
        try:
            form = "JSON" if isinstance(json.loads(body), dict) else "other"
        except ValueError:
            form = "text"
        traces = log.getvalue().count("Traceback")
        print(f"{name:34} {head[9:12].decode() or 'nothing':8} {form:5} tracebacks logged {traces}  {body[:80]!r}")
        if form != "JSON" or traces:
            bad.append(name)
    await gateway.close()


asyncio.run(main())
verdict(not bad, f"refusals before the handlers (not: {bad})")
