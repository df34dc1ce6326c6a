"""The endpoint for agents: an ordinary LLM API over HTTP. It has no tokenizer and no tree.

A request passes ``http_server`` (routes), ``sessions`` (its episode, by its key), ``dialects`` (parsing),
``previous_responses`` (turns that clients leave out), ``call_requests`` and ``answer_wait`` (CallRequested and its
CallAnswered), and ``response_writer`` (the answer, with signs of life while it takes). ``error_middleware`` writes errors in
the dialect's form. ``episode_routes`` and ``auth`` serve agents that run elsewhere.
"""
