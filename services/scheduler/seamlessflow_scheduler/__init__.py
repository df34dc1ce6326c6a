"""scheduler: tracks the fleet, gives roles to nodes, and decides each run's next events.

consumes    RunRequested, RunStopRequested (CTL) · tasks, ends of episodes and evaluations, batches, steps, closed groups,
            the trainer's claims, start, commits, holds and end, requests for a held run, roles taken and released
            (each run's QSCHEDULER) · the NODES bucket, and ORDERS (manual orders)
publishes   RunStarted · GroupAdmitted, EpisodeOpened (first and further attempts) · EvaluationEnded · TrainingEndRequested ·
            TrainerClaimed before it closes a run, GroupTrained of what was committed by then, EpisodeEnded and GroupDropped
            for what the end of a run cuts off · RoleAssigned · RunEnded
writes      LEASES (it alone: one per node, with its affinity buckets and its pinned weights version; epochs only grow) ·
            RUNS (the outcome of each request)
state       all in journals and buckets: at start it folds the journals of the runs that have not ended, and decides again
promises    a run ends: when too many groups in a row fail it stops and reports the reason ·
            admitted − dropped < (step + 1 + max_staleness) × groups_per_step, at every moment · exactly one trainer node per
            run · every assignment has a reason · two schedulers at once do no harm: events that exist once are appended once
waits for   leadership (one scheduler leads by a lease, the others wait) · nodes, reporting which kind is missing

pure        admission/ (one run: its state, measurements and next events) · policy/, placement/, fleet_state (nodes)
adapters    leadership, leases, fleet_monitor (buckets) · run (one run's journal and queue) · paced_publisher (publishes due
            events in slices) · service (wires them, deletes queues of ended runs, and ticks)
"""
