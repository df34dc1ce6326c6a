"""modelscope/ms-swift#8123's sibling: NaN and Infinity in a task's data, as pandas and numpy write them into JSON lines.

    CO=/checkout RUN=name SF_GATEWAY=... python3 l18_nan_in_data.py
`seamlessflow submit` takes the line (Python's json reads NaN), and POST /episodes hands it to the agent. Expected: the line is refused, as
POST /episodes refuses the same data, or the answer is JSON that every client can read.
"""

import json
import os
import subprocess
import tempfile

from sf_live import TOKEN, send, verdict

file = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
file.write('{"task":"nan-%d","env":"free","prompt":"p","data":{"x":NaN,"y":Infinity}}\n' % os.getpid())
file.close()
done = subprocess.run(
    [".venv/bin/python", "-m", "seamlessflow.cli", "submit", file.name, "--run", os.environ["RUN"]],
    cwd=os.environ["CO"],
    capture_output=True,
    text=True,
)
print("submit:", done.returncode, (done.stdout + done.stderr)[-100:].strip())
direct = send("POST", "/episodes", b'{"env":"free","prompt":"p","data":{"x":NaN}}', {"Authorization": f"Bearer {TOKEN}"})
print("POST /episodes with the same data:", direct.status, direct.error)
if done.returncode:
    verdict(True, "the line is refused")
got = send(
    "POST",
    "/episodes",
    json.dumps({"env": "free", "task": f"nan-{os.getpid()}", "wait_seconds": 60}),
    {"Authorization": f"Bearer {TOKEN}"},
    120,
)
print(got.status, got.raw[:200])


def refuse(name):
    raise ValueError(name)


try:
    json.loads(got.raw, parse_constant=refuse)
    verdict(got.status == 201, "the episode is readable JSON")
except ValueError as wrong:
    verdict(False, f"the answer is no JSON ({wrong}): a client in another language never learns of the episode it holds")
