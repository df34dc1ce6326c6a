"""``python -m services.rollout_worker``: needs a NATS URL and a store URL."""

import asyncio
from contextlib import suppress

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context

from .config import WorkerSettings
from .service import RolloutWorker


async def main() -> None:
    settings = WorkerSettings()
    async with open_context(Service.ROLLOUT_WORKER, settings, capabilities=settings.capabilities) as context:
        await RolloutWorker(context, settings).run()


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(main())
