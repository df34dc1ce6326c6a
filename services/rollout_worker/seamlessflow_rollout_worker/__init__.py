"""rollout-worker: owns one engine and samples tokens with it for whichever run its node's lease names.

Hears      GenerationRequested (queue of the tags it holds) · its lease, the weights' head (looked at, or poked)
           · EpisodeEnded, CallAbandoned (read before a claim, and every few seconds while it samples; the former now and then
           for a minute after that, too)
Says       GenerationClaimed, SegmentSampled, GenerationEnded · WeightsLoaded · RoleTaken, RoleReleased · presence
           · in bucket READERS, which version it reads, and which it could not have
           · RunStopRequested when it can never serve the run
Remembers  nothing that is not in the journal; a cache of token ids and the last two versions of the weights, both disposable
Promises   a generation is acknowledged only when its end is stored; a continuation has the remaining budget; a segment has one
           weights version; who was presumed dead writes nothing; nothing is sampled without the device lock; a pause
           for weights loses no token; SIGTERM hands everything back; what it dead-letters it ends as REFUSED; a
           generation ends with the token that completes a stop text, wherever it was sampled; one whose call was
           abandoned keeps what was sampled; one that keeps a version is sampled under that, as long as anybody has it
Waits for  a lease · the run's document · the trainer's model folder and first weights
           · the device lock; its presence says for which
"""
