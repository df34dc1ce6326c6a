"""The self-check of an engine: does it sample from the weights it says, and is that what a trainer would learn from?

order ──▶ python -m seamlessflow_rollout_worker.engine_check ──▶ EngineReport ──┐
  └─────▶ python -m seamlessflow_trainer.engine_check ──▶ TrainerReport ────────┴──▶ judge ──▶ checks, ``doctor --engine``

records     what travels between the processes, as JSON files: each needs packages that the others do not have
process     one of them: from an order's file to a report's
judgement   numbers into verdicts; pure
"""
