"""agent-runner: runs agents, each in a process group of its own, and gives them an LLM endpoint. Agents that run elsewhere
open episodes over HTTP; with ``--gateway-only`` it serves only those.

Consumes   EpisodeOpened (queue per environment tag), CallAnswered (hint, else direct get), its lease; with ``weights.pinned``
           the last WeightsLoaded, which decides the version that an episode pins.
Publishes  EpisodeStarted, CallRequested, EpisodeEnded; TaskSubmitted for an external agent that brings its own prompt.
State      none that must survive: agents die with it, and the next runner of such an episode ends it as RUNNER_LOST.
Promises   an agent never learns of pauses: its call is held alive until the answer is there or its episode is over;
           a failure is a status with a reason, never a reward; no agent outlives its runner; nothing of the service's
           environment (bus address, seeds, store) reaches an agent.
Waits for  CallAnswered, looked up at growing intervals where no hint comes, limited only by the episode's longest life
           (its deadline stands still meanwhile, see ``episodes.deadline``).

```
EpisodeOpened ─▶ run ─▶ local_episode ─▶ agent_process ─▶ forkserver ─fork─▶ agent ──HTTP──▶ gateway ─▶ CallRequested
                  │            │                                                             ◀─────── CallAnswered
                  │            └─ agent exits ─▶ rewards ─▶ EpisodeEnded
                  └─▶ episode_queue ◀─ episode_api ◀──HTTP── external agent
                            └────▶ external_episode ─ it reports ─▶ rewards ─▶ EpisodeEnded
```
"""
