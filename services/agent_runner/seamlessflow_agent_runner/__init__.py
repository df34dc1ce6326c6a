"""agent-runner: runs agents, each in a process group of its own, and gives them an LLM endpoint. Agents that run elsewhere
come to it for episodes; with ``--gateway-only`` it serves only those.

Hears      EpisodeOpened (queue per environment tag), CallAnswered (hint, else direct get), its lease; with ``weights.pinned``
           the last WeightsLoaded, which says what version an episode keeps.
Says       EpisodeStarted, CallRequested, EpisodeEnded; TaskSubmitted for an agent elsewhere that brings its own prompt.
Remembers  nothing that matters: agents die with it, and whoever is given such an episode next says RUNNER_LOST.
Promises   an agent never learns of pauses: its call is held alive until the answer is there or its episode is over;
           a failure is a status with a reason, never a reward; no agent outlives its runner; nothing of the service's
           environment (bus address, seeds, store) reaches an agent.
Waits for  CallAnswered, looked for ever more seldom where no hint comes, without limit but the episode's longest life
           (its deadline stands still meanwhile, see own_time).

```
EpisodeOpened ─▶ membership ─▶ hosted ─▶ nursery/process ─▶ zygote ─fork─▶ agent ──HTTP──▶ gateway ─▶ CallRequested
                     │            │                                                         ◀─────── CallAnswered
                     │            └─ agent exits ─▶ rewards ─▶ EpisodeEnded
                     └─▶ outlet ◀─ episode_desk ◀──HTTP── agent elsewhere
                            └────▶ external ─ it reports ─▶ rewards ─▶ EpisodeEnded
```
"""
