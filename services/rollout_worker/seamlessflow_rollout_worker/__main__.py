"""``python -m seamlessflow_rollout_worker``: needs a NATS URL and a store URL."""

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context, run_service

from .config import WorkerSettings
from .service import RolloutWorker


async def main() -> None:
    settings = WorkerSettings()
    hardware = settings.found_hardware()
    async with open_context(Service.ROLLOUT_WORKER, settings, capabilities=settings.announced("rollout")) as context:
        context.presence.update(hardware=hardware)
        await RolloutWorker(context, settings).run()


if __name__ == "__main__":
    run_service(Service.ROLLOUT_WORKER, main)
