"""Episodes that keep their weights version, on a worker with two real (tiny) models."""

from __future__ import annotations

from pathlib import Path

import torch

from seamlessflow.contracts import GenerationRequested, Int32s, Sampling
from tests.services.rollout_worker.kept_world import TAGS, KeptWorld
from tests.services.rollout_worker.rollout_world import RUN, STOP_ID
from tests.services.rollout_worker.test_rollout_real_engines import PROMPT, publish, start, stop_worker, tiny_llama


def model_of(version: int):
    """One that never samples the stop token."""
    model = tiny_llama(version)
    with torch.no_grad():
        model.lm_head.weight[STOP_ID] = 0.0
    return model


def greedy_after(model, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


async def test_an_episode_of_several_turns_is_sampled_as_if_weights_never_changed(tmp_path: Path):
    """The head moves on between all its turns, and others go with it; its tokens are the first version's, every one."""
    world = KeptWorld(tmp_path)
    await world.open_kept(engine="transformers")
    models = [model_of(version) for version in range(4)]
    await publish(world, models[0], 0, tmp_path)
    worker, task = start(world)
    await world.lease(tags=TAGS)
    ids, parent, wanted = list[int](), None, {}
    for turn in range(4):
        if turn:
            await publish(world, models[turn], turn, tmp_path)
            await world.lease(tags=TAGS, keeps=0)
            await world.until(lambda turn=turn: worker._tenure.engine.held == (0, turn), seconds=60.0)
            await ask(world, f"new{turn}", turn, PROMPT, episode=f"t-{turn}-0")
            wanted[f"new{turn}"] = (turn, greedy_after(models[turn], list(PROMPT), 6))
        suffix = PROMPT if parent is None else (9, 10 + turn)
        await ask(world, f"c{turn}", 0, suffix, parent=parent, parent_tokens=len(ids))
        await world.until_ended(2 * turn + 1, seconds=60.0)
        wanted[f"c{turn}"] = (0, greedy_after(models[0], [*ids, *suffix], 6))
        ids, parent = [*ids, *suffix, *wanted[f"c{turn}"][1]], f"c{turn}"
    await stop_worker(worker, task)

    for generation, (version, tokens) in wanted.items():
        assert await world.tokens(generation) == tokens, generation
        assert set(await world.versions_of(generation)) == {version}


async def ask(world: KeptWorld, generation: str, version: int, prompt: tuple[int, ...], **more: object) -> None:
    """Greedy, so that what a model samples alone can be told."""
    known = {"run": RUN, "episode": "t-0-0", "bucket": 0, "shard": 0, "seed": 7, "stop_token_ids": (STOP_ID,)}
    sampling = Sampling(temperature=0.0, max_tokens=6)
    kept = {"tag": TAGS[version % len(TAGS)], "weights_version": version, "suffix": Int32s(prompt), "sampling": sampling}
    await world.publish(GenerationRequested(generation=generation, **{**known, **kept, **more}))
