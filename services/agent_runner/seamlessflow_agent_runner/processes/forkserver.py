"""The forkserver: a clean, single-threaded interpreter that agents are forked from, with the entrypoint's module imported.

``python -m seamlessflow_agent_runner.processes.forkserver FD PARENT [module:function]``. FD is a
SOCK_SEQPACKET socket to the runner, one JSON object a packet (docs/adr/0003-forked-agents.md):

    runner ─▶ {"start": id, "argv": [..] | null, "keep_result": bool, "cwd", "env", "memory_bytes"} + fds stdout, stderr, result
    runner ─▶ {"signal": number, "id": id}                      to the whole process group
    forkserver ─▶ {"ready": num_threads} | {"failed": reason}   once
    forkserver ─▶ {"started": id, "pid": n}   {"refused": id, "reason"}
    forkserver ─▶ {"exited": id, "code": n}                     code < 0: killed by signal -n

Always true: a child leads a session of its own, dies with the forkserver, and shares only memory with it. When the runner
goes away (end of file), every descendant is killed before the forkserver exits; it adopts orphans for that.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from seamlessflow.local import child_processes

from . import process_tree
from .agent_child import RESULT_FD, TASK_VARIABLE, NotStartable, load_entrypoint, report, run_entrypoint

_ANSWER: dict[str, Any] = {
    "id": "warm",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def warm_clients() -> None:
    """Do a client's first-use imports once here instead of in every agent. A client of an unknown version is left cold.

    At its first call the openai package imports its transport, its resources and its response models: about 25 ms of CPU for
    each forked agent. Two calls that never leave this process pay that before the first fork.
    """
    if "openai" in sys.modules:
        with suppress(Exception):
            _warm_openai()


def _warm_openai() -> None:
    openai: Any = sys.modules["openai"]
    http: Any = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    answering = http.MockTransport(lambda request: http.Response(200, json=_ANSWER))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused at once
        refusing = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        for http_client in (openai.DefaultHttpxClient(), openai.DefaultHttpxClient(transport=answering)):
            client = openai.OpenAI(base_url=refusing, api_key="none", max_retries=0, http_client=http_client)
            with client, suppress(openai.APIConnectionError):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


PACKET_BYTES = 1 << 20
IMPORTED_ONCE = (
    "The module is imported once, before any episode has an endpoint or a key: make clients in the function, "
    "or set fresh = true for this agent."
)
LOOK_MILLISECONDS = 1000
"""Interval between two searches for adopted orphans of ended episodes."""


class Forkserver:
    """Forks, signals and reaps agents on the runner's requests."""

    def __init__(self, link: socket.socket, function: Callable[[dict[str, Any]], Any] | None) -> None:
        self._link, self._function = link, function
        self._ids: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self._markers: dict[int, bytes] = {}
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._pidfds: dict[int, int] = {}

    def run(self) -> None:
        """Serve until the runner goes away, then end all agents."""
        while True:
            for descriptor, _ in self._poll.poll(LOOK_MILLISECONDS):
                if descriptor == self._link.fileno() and not self._serve():
                    return self._end_all()
            self._reap()
            self._end_strays()

    def _serve(self) -> bool:
        try:
            packet, fds, _, _ = socket.recv_fds(self._link, PACKET_BYTES, 3)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        asked = json.loads(packet)
        if "start" in asked:
            self._start(asked, fds)
        elif asked["id"] in self._pids:
            process_tree.end_group(self._pids[asked["id"]], asked["signal"])
        return True

    def _start(self, asked: dict[str, Any], fds: list[int]) -> None:
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as wrong:
            for descriptor in fds:
                os.close(descriptor)
            self._send({"refused": asked["start"], "reason": f"cannot fork: {wrong.strerror}"})
            return
        if pid == 0:
            self._be_child(asked, fds, me)
        for descriptor in fds:
            os.close(descriptor)
        self._ids[pid], self._pids[asked["start"]] = asked["start"], pid
        self._markers[pid] = f"{TASK_VARIABLE}={asked['env'].get(TASK_VARIABLE, '')}".encode()
        self._pidfds[pid] = os.pidfd_open(pid)
        self._poll.register(self._pidfds[pid], select.POLLIN)
        self._send({"started": asked["start"], "pid": pid})

    def _be_child(self, asked: dict[str, Any], fds: list[int], parent: int) -> None:
        """Never returns."""
        code = 1
        try:
            child_processes.die_with_parent(parent)
            child_processes.show_oneself()  # an agent may read its own /proc/self/environ, as any program may
            os.setsid()
            self._link.detach()  # its number is about to be reused
            _take_over(fds)
            process_tree.limit_data(asked["memory_bytes"])
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            if asked["argv"] is not None:
                _exec(asked["argv"], keep_result=asked["keep_result"])
            elif self._function is not None:
                sys.argv = ["agent"]
                code = run_entrypoint(self._function)
        except BaseException as wrong:
            report({"not_started": f"{type(wrong).__name__}: {wrong}"})
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self._ids:
                continue  # an orphan we had adopted
            process_tree.end_group(pid)  # what the agent left running in its group
            descriptor = self._pidfds.pop(pid)
            self._poll.unregister(descriptor)
            os.close(descriptor)
            name = self._ids.pop(pid)
            del self._pids[name], self._markers[pid]
            self._send({"exited": name, "code": os.waitstatus_to_exitcode(status)})

    def _end_strays(self) -> None:
        """Kill adopted orphans whose episode is over, daemons in sessions of their own included."""
        live = set(self._markers.values())
        for pid in process_tree.direct_children():
            if pid in self._ids:
                continue
            marker = process_tree.environment_entry(pid, TASK_VARIABLE)
            if marker not in live and (marker is not None or not live):
                process_tree.end_process(pid)

    def _end_all(self) -> None:
        while children := process_tree.direct_children():
            for pid in children:
                process_tree.end_group(pid)
                process_tree.end_process(pid)
            os.waitpid(-1, 0)  # its own children are now ours: look again

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.send(json.dumps(message).encode())
        except OSError:
            return  # the runner is gone; the next receive fails


def _take_over(fds: list[int]) -> None:
    """Make the three descriptors our standard output, standard error and result; close everything else."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in fds]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor, target in zip(high, (1, 2, RESULT_FD), strict=True):
        os.dup2(descriptor, target)
    os.closerange(RESULT_FD + 1, 1 << 20)


def _exec(argv: list[str], *, keep_result: bool) -> None:
    os.set_inheritable(RESULT_FD, keep_result)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, other programs expect it
    try:
        os.execvpe(argv[0], argv, dict(os.environ))  # noqa: S606  no shell is the point
    except OSError as wrong:
        raise OSError(f"cannot start {argv[0]!r}: {wrong.strerror}") from wrong


def main(descriptor: int, parent: int, entrypoint: str | None) -> None:
    """Import the entrypoint, report readiness or failure, and serve. None: a bare interpreter."""
    child_processes.hide_secrets()  # agents cannot trace or read what they were forked from
    child_processes.die_with_parent(parent)  # while importing; afterwards the end of file tells, and agents are ended first
    link = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    try:
        function = None if entrypoint is None else load_entrypoint(entrypoint)
    except NotStartable as wrong:
        link.send(json.dumps({"failed": f"{str(wrong)[:8000]}\n{IMPORTED_ONCE}"}).encode())
        sys.exit(1)
    warm_clients()
    process_tree.adopt_orphans()
    child_processes.outlive_parent()
    num_threads = sum(1 for _ in os.scandir("/proc/self/task"))
    gc.collect()
    gc.freeze()  # what is imported now stays shared with every fork
    link.send(json.dumps({"ready": num_threads}).encode())
    Forkserver(link, function).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
