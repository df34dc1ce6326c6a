"""python -m seamlessflow_trajectory_manager"""

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context, run_service

from .config import ManagerSettings
from .service import TrajectoryManager


async def main() -> None:
    async with open_context(Service.TRAJECTORY_MANAGER, ManagerSettings(), capabilities=("serve",)) as context:
        await TrajectoryManager(context).run()


if __name__ == "__main__":
    run_service(Service.TRAJECTORY_MANAGER, main)
