"""Agents and verifiers for the tests: ordinary functions that behave well, badly and worse. Run in processes of their own."""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def one(answer, task):
    return 1.0


def ask(task):
    from openai import OpenAI

    answer = OpenAI().chat.completions.create(model="any", messages=[{"role": "user", "content": task["prompt"]}])
    return answer.choices[0].message.content


def asks_plainly(task):
    """Without a client that takes a second to import."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["prompt"]}]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def asks_then_hangs(task):
    asks_plainly(task)
    time.sleep(1000)


def dumpable():
    """1 where other processes of our user may read this one, else 0."""
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)


DUMPABLE_AT_IMPORT = dumpable()


def tells_dumpable(task):
    return f"{DUMPABLE_AT_IMPORT}{dumpable()}"


def verifier_adds_dumpable(answer, task):
    return float(f"{dumpable()}{answer}")


def prints(task):
    print("  printed  ")


async def awaits(task):
    return "awaited"


def returns_number(task):
    return 7


def raises(task):
    raise RuntimeError("no idea")


def exits(task):
    print("last words", file=sys.stderr)
    sys.exit(3)


def crashes(task):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(task):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"])  # in our group
    time.sleep(1000)


def hangs_with_daemon(task):
    """Its daemon has a session of its own and no parent."""
    subprocess.run(["sh", "-c", "setsid sleep 1000 & "], check=True)
    time.sleep(1000)


def leaves_daemon(task):
    subprocess.run(["sh", "-c", "setsid sleep 1000 & echo $!"], check=True)


def prints_a_gigabyte(task):
    line = "x" * 65535 + "\n"
    for _ in range(1 << 14):
        sys.stdout.write(line)


def eats_memory(task):
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(1 << 20)) * 8)
        time.sleep(0.01)


def eats_memory_in_a_child(task):
    subprocess.run([sys.executable, "-c", "import time; b = bytearray(b'x') * (200 << 20); time.sleep(1000)"])


def tells_surroundings(task):
    return json.dumps(
        {
            "environment": dict(os.environ),
            "cwd": str(Path.cwd()),
            "session_is_own": os.getsid(0) == os.getpid(),
            "descriptors": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir()),
            "task": task,
            "stdin": sys.stdin.read(),
            "random": random.random(),
        }
    )


def verifier_raises(answer, task):
    raise KeyError("no such entry")


def verifier_exits(answer, task):
    sys.exit(1)


def verifier_gives_nan(answer, task):
    return float("nan")


def verifier_gives_inf(answer, task):
    return float("inf")


def verifier_gives_text(answer, task):
    return "1.0"


def verifier_gives_none(answer, task):
    return None


def verifier_hangs(answer, task):
    if answer == "hang":
        time.sleep(1000)
    return 0.5


def verifier_dies(answer, task):
    os._exit(1)


def verifier_counts(answer, task):
    return float(len(answer))
