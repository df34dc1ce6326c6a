"""``python -m services.trainer``"""

import asyncio

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context

from .config import TrainerSettings
from .service import Trainer


async def main() -> None:
    settings = TrainerSettings()
    async with open_context(Service.TRAINER, settings, capabilities=("train",)) as context:
        await Trainer(context, settings).run()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main())
    else:
        uvloop.run(main())
