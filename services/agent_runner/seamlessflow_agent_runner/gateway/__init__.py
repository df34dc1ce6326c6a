"""The endpoint agents talk to: an ordinary LLM API over HTTP. It has no tokenizer and no tree.

A dialect is a file for what is asked and one for how it is answered (``chat``, ``completions``, ``responses``, ``messages``).
Besides them: bodies and offers (what dialects have in common), refusals (errors in their form), sessions (who calls), memory
(what was said, for clients that leave it out), call and calls (who waits for an answer; asking the manager), holding (waiting
without being noticed), peers (clients that are gone without a word, or do not read).
"""
