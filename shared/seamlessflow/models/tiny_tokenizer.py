"""The tiny model's tokenizer: one token per character, a few set phrases, ChatML.

The phrases make a tool call six tokens instead of eighty, without changing its text: what is decoded is plain JSON
between ``<tool_call>`` and ``</tool_call>``. Text outside printable ASCII and newline becomes ``<unk>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<unk>", "<|im_start|>", "<|im_end|>")
CALL_OPENING = '<tool_call>{"name": "calc", "arguments": {"expression": "'
CALL_CLOSING = '"}}</tool_call>'
PHRASES = ("system", "user", "assistant", "tool", "What is ", CALL_OPENING, CALL_CLOSING)
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
VOCAB_SIZE = len(SPECIAL_TOKENS) + len(CHARACTERS) + len(PHRASES)

# Tools are left out of the prompt on purpose: the model knows its one tool, and every character would be a token.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
<tool_call>{"name": "{{ function.name }}", "arguments": \
{{ function.arguments if function.arguments is string else function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build it from nothing; the same every time. eos and pad are ``<|im_end|>``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *CHARACTERS])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call] # transformers' own
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
