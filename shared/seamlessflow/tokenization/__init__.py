"""Token ids and what they say: the tokenizer, the text as it becomes certain, the texts that end an answer.

Who samples and who shows read the same ids; here is the one place that says what text they are.
"""
