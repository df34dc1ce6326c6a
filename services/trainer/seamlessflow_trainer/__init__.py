"""trainer: groups of samples become optimiser steps, weights versions and, when durable, committed steps.

hears      SamplesReady, TrainingEndRequested (its queue); its node's lease; the newest claim, ResumeRequested, and who reads
           which version, or could not (looked at)
says       TrainerClaimed, TrainerStarted, BatchReady, StepTaken, WeightsPublished, StepsCommitted, RolledBack, GroupTrained,
           GroupDropped, TrainingEnded, RoleTaken, RoleReleased; RunHeld, or RunStopRequested, when it cannot go on
remembers  checkpoints in the store (model, optimiser, what they consumed); everything else it folds from the journal
           and from samples that are not acknowledged yet
promises   a late trainer never undoes the work of a newer claim; the first closing of a group counts; samples are
           acknowledged only when their group is closed; a version number is never used twice; only what a durable
           checkpoint holds, which a commit names, counts as committed; killed at any line, it goes on;
           SIGTERM keeps the steps that were taken (a checkpoint, within ten seconds, else as killed); as a member of a
           gang it holds its device for another's steps, and joins no run
waits for  a lease that makes it a run's trainer, or a member; complete groups; the device, while the lease's role is train

    service   leases ─▶ one Training            training      a run from joining to TrainingEnded
    intake    deliveries ─▶ groups              stepping      groups ─▶ BatchReady, a step, StepTaken
    joining   claim ─▶ restoring (which checkpoint, a rollback, or held) ─▶ TrainerStarted
    commits   checkpoint ─▶ StepsCommitted, GroupTrained, acknowledgements        living   the end of a line by another claim
    device_turn   who has the device, as the lead of a gang, alone, or as a member
    gap_alarm     each step's logprob gap, judged; engine_check: a step at learning rate 0, for ``doctor --engine``
    pure      groups · batches · parts · correction · gap_sources · packing · standing · asking (when a version is full because
              somebody lacks one) · step_metrics · algorithms/
    torch     building (what a learner is, and which) · learner · lora · lora_layers · microbatches · precision · loading ·
              tensorfiles
    store     checkpoints · publishing · versioning (full, or what changed) · adapter_versions (LoRA: the base once, then
              adapters) · numbers_only (what is published at all)
"""
