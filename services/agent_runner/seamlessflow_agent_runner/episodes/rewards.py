"""Rewards: the client of a verifier's process. A reward is a finite number from the verifier, or there is none."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import structlog

from seamlessflow_agent_runner.processes.process_tree import end_group

log = structlog.get_logger()

LINE_BYTES = 64 << 20


class VerifierFailed(Exception):
    """No reward: the verifier raised, hung, died, or answered something else than a finite number."""


class Judge:
    """One verifier in a process of its own, asked one answer at a time; killed and started anew when it hangs."""

    def __init__(
        self, reward: str, dataset: str, environment: Mapping[str, str], *, answer_seconds: float, start_seconds: float
    ) -> None:
        self._reward, self._dataset, self._environment = reward, dataset, dict(environment)
        self._answer_seconds, self._start_seconds = answer_seconds, start_seconds
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def warm(self) -> None:
        """Start the process ahead of the first answer; that answer reports a failure again."""
        async with self._turn:
            try:
                await self._ensure_started()
            except VerifierFailed as wrong:
                log.warning("verifier.unusable", reward=self._reward, reason=str(wrong))

    async def reward(self, answer: str, task: Mapping[str, Any]) -> float:
        """The reward of an answer. Raises VerifierFailed."""
        async with self._turn:
            await self._ensure_started()
            reply = await self._ask({"answer": answer, "task": task}, self._answer_seconds)
        if "reward" not in reply:
            raise VerifierFailed(reply["wrong"])
        return float(reply["reward"])

    async def _ensure_started(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        ours, theirs = socket.socketpair()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "seamlessflow_agent_runner.episodes.verifier_process",
            str(theirs.fileno()), str(os.getpid()), self._reward, self._dataset,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            env=self._environment, pass_fds=(theirs.fileno(),), start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        reply = await self._answer(self._start_seconds)
        if "ready" not in reply:
            await self._kill()
            raise VerifierFailed(reply["wrong"])

    async def _ask(self, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._writer.write(json.dumps(asked).encode() + b"\n")
        return await self._answer(seconds)

    async def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line. Any failure kills the process, so that a late line is never taken for another request's."""
        try:
            async with asyncio.timeout(seconds):
                line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise VerifierFailed("the verifier's process died")
            reply = json.loads(line)
        except TimeoutError as wrong:
            await self._kill()
            raise VerifierFailed(f"the verifier did not answer for {seconds:g} s and was killed") from wrong
        except (OSError, ValueError) as wrong:
            await self._kill()
            raise VerifierFailed(f"the verifier's process died: {wrong}") from wrong
        except BaseException:
            await self._kill()
            raise
        assert isinstance(reply, dict)
        return reply

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._writer.close()
        end_group(process.pid)  # and whatever the verifier had started
        await process.wait()

    async def close(self) -> None:
        """End the process."""
        await self._kill()
