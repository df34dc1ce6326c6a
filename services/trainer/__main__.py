"""``python -m services.trainer``"""

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context, run_service

from .config import TrainerSettings
from .service import Trainer


async def main() -> None:
    settings = TrainerSettings()
    async with open_context(Service.TRAINER, settings, capabilities=("train",)) as context:
        await Trainer(context, settings).run()


if __name__ == "__main__":
    run_service(Service.TRAINER, main)
