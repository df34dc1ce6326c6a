"""The same as t12, through a whole run: three episodes of a group are reported with REWARDS, then two ordinary groups.
NVIDIA-NeMo/RL#1518, huggingface/trl#5775.

    r01_reward_run.py CHECKOUT 1e308,1e308,0 [true|false: normalize_std]
Expected: the run takes its three steps or ends saying why; it does not die again and again, and the weights stay finite.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

checkout, rewards = sys.argv[1], [float(x) for x in sys.argv[2].split(",")]
normalize = sys.argv[3] if len(sys.argv) > 3 else "true"
port, here = "18473", Path(__file__).parent
config = Path(tempfile.mkdtemp()) / "rewards.toml"
config.write_text((here / "reward_run.toml").read_text().replace("normalize_std = true", f"normalize_std = {normalize}"))
out = open(config.with_suffix(".out"), "w")
run = subprocess.Popen(
    [f"{checkout}/.venv/bin/python", "-m", "seamlessflow.cli", "train", str(config)],
    cwd=checkout,
    stdout=out,
    stderr=out,
    env={**os.environ, "SEAMLESSFLOW_GATEWAY_PORT": port, "SEAMLESSFLOW_GATEWAY_TOKEN": "secret"},
)


def post(path, body, key):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as got:
            return got.status, json.load(got)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)
    except OSError as wrong:
        return 0, {"error": str(wrong)}


began, sent = time.monotonic(), 0
plan = [rewards, [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
for number, group in enumerate(plan):
    for index, reward in enumerate(group):
        body = {"env": "free", "task": f"t{number}", "wait_seconds": 20} | ({"prompt": "What is 1+1?"} if index == 0 else {})
        while True:
            status, episode = post("/episodes", body, "secret")
            if status == 201 or run.poll() is not None or time.monotonic() - began > 150:
                break
            time.sleep(1)
        if status != 201:
            print("no more episodes:", status, str(episode)[:200])
            break
        post(
            "/v1/chat/completions",
            {"model": "m", "messages": [{"role": "user", "content": f"What is {index}+1?"}]},
            episode["api_key"],
        )
        print(
            f"t{number}/{index} reward {reward}:",
            post(f"/episodes/{episode['episode']}/reward", {"reward": reward}, episode["api_key"])[0],
        )
while run.poll() is None and time.monotonic() - began < 180:
    time.sleep(1)
if run.poll() is None:
    print("still going after", round(time.monotonic() - began), "s: stopped")
    run.send_signal(2)
    run.wait(60)
print("exit code", run.returncode)
text = config.with_suffix(".out").read_text()
print(text[-2500:])
