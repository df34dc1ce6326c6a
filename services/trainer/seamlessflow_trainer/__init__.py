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

    service            leases ─▶ one TrainerRun (run), from joining to TrainingEnded
    run_start          claim ─▶ steps/checkpoint_restore (which checkpoint, a rollback, or held) ─▶ TrainerStarted
    data/              sample_queue: deliveries ─▶ groups · batch, packing (pure) · batch_feed: parts for the learner's thread
    device_turn        the device: held as the lead of a gang, alone, or as a member
    learner/           base (the interface) · learner, lora (torch) · model_loading · factory
    algorithms/        grpo, off_policy_correction (pure)
    steps/             train_step: groups ─▶ BatchReady, a step, StepTaken · logprob_gap_alarm
                       step_commits: checkpoint ─▶ StepsCommitted, GroupTrained, acknowledgements · checkpoints (store)
    weights/           publisher (head, full versions on request) · version_files · lora_versions · safetensors_writer
    incarnations       the end of an incarnation by another claim, a rollback or a hold, and the wait for the next
    engine_check       a step at learning rate 0, for ``doctor --engine``
"""
