"""Fleets of devices that are not there: a cost model in place of accelerators, in virtual time (simulator) and in scaled time.

``constants`` holds every number with its source · ``cost`` and ``engine_model`` say how long a device takes · ``workloads``
what there is to do · ``simulator`` drives the scheduler's own pure code with it · ``baselines`` are other systems' ways as
policies.
"""
