"""The endpoint agents talk to: an ordinary LLM API over HTTP. It has no tokenizer and no tree.

One file per dialect (``chat``); sessions (who calls), calls (asking the manager), holding (waiting without being noticed).
"""
