"""trajectory-manager: turns what agents ask into tokens for engines, and what engines sample into answers and samples.

hears      CallRequested, EpisodeEnded, SegmentSampled, GenerationEnded of its shards, in journal order
says       GenerationRequested, CallAnswered; SamplesReady or EpisodeEvaluated, one per attempt; RunStopRequested when it
           can never serve the run
remembers  the trees of open episodes, as a fold over the journal; nothing on disk. Finished ones are packed to the store
promises   token ids come from the engine only; an exact token prefix or a fork; each sampled token in at most one span of
           one sample; one answer per call, stored before it is hinted; text is streamed only of stored tokens, and the
           answer begins with it; a restart in the middle of a call changes nothing;
           a call or an end that it dead-letters is answered with an error, or judged without samples
waits for  a lease that names a run and its shards, the run's document, the model folder that the trainer publishes

    identity, messages                                                  which message is which, each kept once (pure)
    matching, forks, history                                            what a request goes on from, and why not (pure)
    template, template_tail, redisplay, parsing, visible, rendering, library
                 messages to ids and back                               (pure, given a model folder)
    streaming, library_stream, deltas                                   text while it is sampled (pure)
    raw_prompts  prompts without a template                             (pure)
    tree         turns of one episode, each token once                  (pure)
    samples      tree to samples                                        (pure)
    answers      what a call is answered with                           (pure)
    call, episode                                                       calls of one episode: planned, sampled, answered (pure)
    ending       what an episode comes to                               (pure)
    shelf        finished trees in the store
    manager      event in, consequences out, for all episodes           (pure)
    membership   the run's model, and its shards: folded, joined and left each on its own
    service      lease, queue, hints
    comparison, replay                                                  would it say the same again?
"""
