"""``python -m services.trajectory_manager.replay``, from a checkout: the name before the services were packages."""

import logging
import runpy

logging.warning("services.trajectory_manager.replay is now seamlessflow_trajectory_manager.replay")
runpy.run_module("seamlessflow_trajectory_manager.replay", run_name="__main__", alter_sys=True)
