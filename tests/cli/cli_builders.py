"""Commands that run beside a test."""

import os
import subprocess
import sys
import time

SECONDS = 60.0


class Command:
    """A command with a pipe for a screen."""

    def __init__(self, cwd, *arguments):
        cwd.mkdir(exist_ok=True)
        self.cwd, self.output = cwd, cwd / "output"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SEAMLESSFLOW_")}
        env = {**clean, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.output.open("w") as file:
            argv = [sys.executable, "-m", "seamlessflow.cli", *arguments]
            self.process = subprocess.Popen(argv, cwd=cwd, env=env, stdout=file, stderr=subprocess.STDOUT)

    def wait_for(self, words):
        deadline = time.monotonic() + SECONDS
        while words not in self.output.read_text():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def end(self):
        """Exit code and everything it said."""
        return self.process.wait(SECONDS), self.output.read_text()
