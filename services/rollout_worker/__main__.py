"""``python -m services.rollout_worker``, from a checkout: the name before the services were packages."""

import logging
import runpy

logging.warning("services.rollout_worker is now seamlessflow_rollout_worker: python -m seamlessflow_rollout_worker")
runpy.run_module("seamlessflow_rollout_worker", run_name="__main__", alter_sys=True)
