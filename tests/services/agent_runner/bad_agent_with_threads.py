"""An agent whose module starts a thread when it is imported: it must not be forked."""

import os
import threading
import time

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
IMPORTED_IN = os.getpid()


def run(task):
    return f"own interpreter: {os.getpid() == IMPORTED_IN}"
