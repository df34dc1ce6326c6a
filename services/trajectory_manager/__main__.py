"""python -m services.trajectory_manager"""

import uvloop

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context

from .config import ManagerSettings
from .service import TrajectoryManager


async def main() -> None:
    async with open_context(Service.TRAJECTORY_MANAGER, ManagerSettings(), capabilities=("serve",)) as context:
        await TrajectoryManager(context).run()


if __name__ == "__main__":
    uvloop.run(main())
