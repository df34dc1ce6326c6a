"""``python -m services.agent_runner``, from a checkout: the name before the services were packages."""

import logging
import runpy

logging.warning("services.agent_runner is now seamlessflow_agent_runner: python -m seamlessflow_agent_runner")
runpy.run_module("seamlessflow_agent_runner", run_name="__main__", alter_sys=True)
