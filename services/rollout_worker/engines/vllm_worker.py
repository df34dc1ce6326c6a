"""The path of ``LoadsFromFile`` before the services were packages; needs only the checkout on PYTHONPATH, and vLLM."""

import logging
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # behind all else: what is installed wins

from seamlessflow_rollout_worker.engines.vllm.worker_extension import LoadsFromFile

__all__ = ["LoadsFromFile"]
logging.getLogger(__name__).warning("%s is now %s.LoadsFromFile", __name__, LoadsFromFile.__module__)
