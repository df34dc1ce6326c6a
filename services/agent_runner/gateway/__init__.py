"""The endpoint agents talk to: an ordinary LLM API over HTTP. It has no tokenizer and no tree.

A dialect is a file for what is asked and one for how it is answered (``chat``, ``completions``, ``responses``, ``messages``).
Besides them: bodies and offers (what dialects have in common), sessions (who calls), memory (what was said, for clients that
leave it out), calls (asking the manager), holding (waiting without being noticed).
"""
