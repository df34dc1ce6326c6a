"""The vocabulary of SeamlessFlow: every event, and the one table that wires them."""

from .arrays import Float32s, Int32s
from .base import Event, Record, Service, partition
from .calls import AnswerDelta, AnswerTokens, CallAbandoned, CallAnswered, CallError, CallRequested, Usage
from .episodes import (
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStarted,
    EpisodeStatus,
    GroupAdmitted,
    Sampling,
    is_final,
)
from .fleet import (
    Hardware,
    Lease,
    NodeOrder,
    NodeStatus,
    Role,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    RunPhase,
    RunState,
    WeightsHead,
    WeightsReading,
)
from .generations import (
    Claim,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    SegmentSampled,
    claim_of,
)
from .runs import (
    DeadLetter,
    EvaluationEnded,
    ResumeRequested,
    RunEnded,
    RunHeld,
    RunRequested,
    RunStarted,
    RunStopRequested,
    TasksEnded,
    TaskSubmitted,
)
from .samples import EpisodeEvaluated, Sample, SamplesReady
from .tags import Tag
from .training import (
    BatchReady,
    DropReason,
    EpisodeTokens,
    GroupDropped,
    GroupTrained,
    MaskReason,
    RolledBack,
    StepsCommitted,
    StepTaken,
    TrainedGroup,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
    WeightsLoaded,
    WeightsPublished,
)

__all__ = [
    "AnswerDelta", "AnswerTokens", "BatchReady", "CallAbandoned", "CallAnswered", "CallError", "CallRequested", "Claim",
    "DeadLetter", "DropReason", "EpisodeEnded", "EpisodeEvaluated", "EpisodeOpened", "EpisodeOrigin", "EpisodeStarted",
    "EpisodeStatus", "EpisodeTokens", "EvaluationEnded", "Event", "Float32s", "GenerationClaimed", "GenerationEnded",
    "GenerationFinish", "GenerationRequested", "GroupAdmitted", "GroupDropped", "GroupTrained", "Hardware", "Int32s", "Lease",
    "MaskReason", "NodeOrder", "NodeStatus", "Record", "ResumeRequested", "Role", "RoleAssigned", "RoleReleased", "RoleTaken",
    "RolledBack", "RunEnded", "RunHeld", "RunPhase", "RunRequested", "RunStarted", "RunState", "RunStopRequested", "Sample",
    "SamplesReady", "Sampling", "SegmentSampled", "Service", "StepTaken", "StepsCommitted", "Tag", "TaskSubmitted",
    "TasksEnded", "TrainedGroup", "TrainerClaimed", "TrainerStarted", "TrainingEndRequested", "TrainingEnded", "Usage",
    "WeightsHead", "WeightsLoaded", "WeightsPublished", "WeightsReading", "claim_of", "is_final", "partition",
]  # fmt: skip
