"""``python -m services.scheduler``, from a checkout: the name before the services were packages."""

import logging
import runpy

logging.warning("services.scheduler is now seamlessflow_scheduler: python -m seamlessflow_scheduler")
runpy.run_module("seamlessflow_scheduler", run_name="__main__", alter_sys=True)
