"""trajectory-manager: turns what agents ask into tokens for engines, and what engines sample into answers and samples.

hears      CallRequested, EpisodeEnded, GenerationClaimed, SegmentSampled, GenerationEnded of its shards, in journal order
says       GenerationRequested, CallAnswered; SamplesReady or EpisodeEvaluated, one per attempt; RunStopRequested when it
           can never serve the run
remembers  the trees of open episodes, as a fold over the journal; nothing on disk
promises   token ids come from the engine only; an exact token prefix or a fork; each sampled token in at most one span of
           one sample; one answer per call, stored before it is hinted; a restart in the middle of a call changes nothing;
           a call or an end that it dead-letters is answered with an error, or judged without samples
waits for  a lease that names a run and its shards, the run's document, the model folder that the trainer publishes

    identity     which message is which, however a client writes it     (pure)
    tokenizer, template, parsing, rendering, library                    messages to ids and back (pure, given a model folder)
    tree         turns of one episode, each token once                  (pure)
    samples      tree to samples                                        (pure)
    answers      what a call is answered with                        (pure)
    episode      calls of one episode: planned, sampled, answered       (pure)
    manager      event in, consequences out, for all episodes           (pure)
    service      lease, fold, queue, hints
    comparison, replay                                                  would it say the same again?
"""
