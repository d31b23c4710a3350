"""A tiny model with random weights as a GGUF file, for llama.cpp's own server.

It knows only the last character: a random table says what may follow, tilted so that texts,
strings and objects end soon. Its words mean nothing. Given tools, it begins a call after the
person's words and a text after a tool's result; what the server forces by a grammar (the rest of
a call, a schema) is valid, and template, grammar, streaming and token counts are the real ones.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

CONTEXT = 8192
SEED = 204
_SPACE = "\u2581"
_CALL = "<tool_call>"
_END = "<|im_end|>"
_INNER = 32

# Tools as Qwen 2.5 and Hermes 2 Pro take them: llama.cpp derives its grammar from the template.
# The last character of a prompt says what comes: a line's end a call, a space a text.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call functions:
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Answer a call as
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}{{ '\n' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}
{%- if not tools or messages[-1].role == 'tool' %}{{ ' ' }}{% endif %}
{%- endif %}"""


def write_tiny_gguf(path: Path) -> Path:
    """Write the model; the same bytes each time."""
    words = _vocabulary()
    width = len(words) + len(words) % 2
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(words))
    writer.add_chat_template(TEMPLATE)
    _add_vocabulary(writer, words)
    _add_weights(writer, list(words), width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary() -> dict[str, gguf.TokenType]:
    """Control words, the 256 bytes, and the printable characters of ASCII."""
    kinds = gguf.TokenType
    words = {"<unk>": kinds.UNKNOWN}
    words |= dict.fromkeys(("<s>", "</s>", "<|im_start|>", _END), kinds.CONTROL)
    words |= {_CALL: kinds.USER_DEFINED}
    words |= {f"<0x{byte:02X}>": kinds.BYTE for byte in range(256)}
    return words | {chr(code): kinds.NORMAL for code in range(33, 127)} | {_SPACE: kinds.NORMAL}


def _add_vocabulary(writer: gguf.GGUFWriter, words: dict[str, gguf.TokenType]) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list([word.encode() for word in words])
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([int(kind) for kind in words.values()])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(list(words).index(_END))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _add_weights(writer: gguf.GGUFWriter, words: list[str], width: int) -> None:
    """One direction for each word, a layer that adds nothing, and the table as the output."""

    def add(name: str, weights: npt.NDArray[np.float32]) -> None:
        writer.add_tensor(name, weights.astype(np.float32))

    eye = np.eye(len(words), width, dtype=np.float32)
    add("token_embd.weight", eye)
    add("output.weight", (_table(words) @ eye) / np.float32(width**0.5))  # undoes the norm's scale
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        add(f"{name}.weight", np.ones(width, dtype=np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", np.zeros((width, width), dtype=np.float32))
    add("blk.0.ffn_gate.weight", np.zeros((_INNER, width), dtype=np.float32))
    add("blk.0.ffn_up.weight", np.zeros((_INNER, width), dtype=np.float32))
    add("blk.0.ffn_down.weight", np.zeros((width, _INNER), dtype=np.float32))


def _table(words: list[str]) -> npt.NDArray[np.float32]:
    """Scores of next words: a row for each next word, a column for each last one."""
    table = np.random.default_rng(SEED).standard_normal((len(words),) * 2, dtype=np.float32)
    for row, word in enumerate(words):
        if not (len(word) == 1 and (word.isalnum() or word == _SPACE)):
            table[row] -= 30  # only where a grammar leaves nothing else
    for word in (_END, '"', "}", "]"):
        table[words.index(word)] += 32 if word in (_END, '"') else 29
    line_end = words.index("<0x0A>")
    table[words.index(_CALL), line_end] += 60
    table[line_end, words.index(_CALL)] += 90
    for word in (_END, '"'):
        table[words.index(word), [words.index(_SPACE), words.index('"')]] -= 10
    return table
