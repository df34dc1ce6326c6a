"""``python -m seamlessflow_trainer``"""

import sys

from seamlessflow.contracts import Service
from seamlessflow.errors import Refused
from seamlessflow.runtime import open_context, run_service

from .config import TrainerSettings
from .service import Trainer


async def main() -> None:
    settings = TrainerSettings()
    hardware = settings.found_hardware(settings.device)
    async with open_context(Service.TRAINER, settings, capabilities=settings.announced("train")) as context:
        context.presence.update(hardware=hardware)
        await Trainer(context, settings).run()


if __name__ == "__main__":
    try:
        run_service(Service.TRAINER, main)
    except Refused as wrong:  # another trainer has this run
        sys.exit(f"trainer ends: {wrong}")
