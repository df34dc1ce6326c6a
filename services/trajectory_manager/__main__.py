"""``python -m services.trajectory_manager``, from a checkout: the name before the services were packages."""

import logging
import runpy

logging.warning("services.trajectory_manager is now seamlessflow_trajectory_manager: python -m seamlessflow_trajectory_manager")
runpy.run_module("seamlessflow_trajectory_manager", run_name="__main__", alter_sys=True)
