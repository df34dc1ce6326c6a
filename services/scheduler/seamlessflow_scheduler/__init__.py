"""scheduler: keeps the fleet's picture, gives out roles, and sets the rhythm of every run.

hears       RunRequested, RunStopRequested (CTL) · tasks, ends of episodes and evaluations, batches, steps, closed groups,
            the trainer's claims, start, commits, holds and end, what people want of a held run, roles taken and released
            (each run's QSCHEDULER) · the NODES bucket, and ORDERS (what people ordered by hand)
says        RunStarted · GroupAdmitted, EpisodeOpened (first and further attempts) · EvaluationEnded · TrainingEndRequested ·
            TrainerClaimed before it closes a run, GroupTrained of what was committed by then, EpisodeEnded and GroupDropped
            for what the end of a run cuts off · RoleAssigned · RunEnded
writes      LEASES (it alone: one per node, with the affinity buckets it owns and the weights version it keeps;
            epochs only grow) · RUNS (what became of
            each request)
remembers   nothing that is not in a journal or a bucket: it folds the journals of the runs that have not ended, and decides
            again
promises    a run ends: when group after group comes to nothing it stops and says what failed ·
            admitted − dropped < (step + 1 + max_staleness) × groups_per_step, at every moment · exactly one trainer node per
            run · every assignment has a reason · two schedulers at once do no harm: what may happen once is said once
waits for   leadership (one scheduler leads by a lease, the others wait) · nodes, saying which kind is missing

pure        names, rounds, steps, losses, progress, measures, demand, rhythm (one run) · policy/, fleet, pulse, doubles,
            wants, allocation, shards, versions, plan (nodes)
adapters    leadership, lease_book, lookout (buckets) · conductor (one run's journal and queue) · voice (says what is
            due, in slices) · clearing (queues of ended runs) · service (wires them, and the tick)
"""
