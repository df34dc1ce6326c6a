"""The calculator agent as a program of its own, deployed anywhere: it opens episodes at a gateway until the run is over.

    python -m deploy.demo.elsewhere http://127.0.0.1:8000 --run my-run --workers 4

The agent itself stays as it is: for each episode it is told another base URL and key, as for any other model.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import time
import urllib.error
import urllib.request

from deploy.demo import calculator

TOKEN = "SEAMLESSFLOW_GATEWAY_TOKEN"
PATIENCE_SECONDS = 60.0
"""How long a gateway may be away."""


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("gateway", help="its address")
    given.add_argument("--run", required=True, help="the run to take part in; its end is ours")
    given.add_argument("--workers", type=int, default=4, help="episodes side by side")
    chosen = given.parse_args()
    workers = [multiprocessing.Process(target=work, args=(chosen.gateway, chosen.run)) for _ in range(chosen.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    raise SystemExit(max(worker.exitcode or 0 for worker in workers))


def work(gateway: str, run: str) -> None:
    """Episode after episode."""
    while True:
        status, episode = post(f"{gateway}/episodes", {"run": run}, os.environ.get(TOKEN))
        if status == 410:  # the run is over
            return
        if status == 503:  # none for now
            time.sleep(1)
            continue
        if status != 201:
            raise SystemExit(f"{gateway} opens no episode: {status} {episode}")
        os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = episode["base_url"], episode["api_key"]
        try:
            report = {"answer": calculator.run(episode)}
        except Exception as wrong:
            report = {"failed": f"{type(wrong).__name__}: {wrong}"}
        # The same report again gives the same answer. Any status but 200: the episode ended without us.
        print(*post(f"{gateway}/episodes/{episode['episode']}/reward", report, episode["api_key"]), flush=True)


def post(url: str, body: dict, key: str | None) -> tuple[int, dict]:
    """Status and body of the answer, through restarts of the gateway."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - the address is given by its user
    gives_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)
        except (OSError, http.client.HTTPException):  # it is away
            if time.monotonic() > gives_up_at:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    main()
