"""``python -m services.trainer``, from a checkout: the name before the services were packages."""

import logging
import runpy

logging.warning("services.trainer is now seamlessflow_trainer: python -m seamlessflow_trainer")
runpy.run_module("seamlessflow_trainer", run_name="__main__", alter_sys=True)
