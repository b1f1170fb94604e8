"""Writes a llama of about 1.8e9 parameters as Q4_K, 1 GB, to measure conversions with: convertfile.py MODEL.gguf OUT.gguf

The tokenizer is that of MODEL.gguf; the blocks have random bits and scales of the size that models have.
"""

import sys

import gguf
import numpy as np

source, out = sys.argv[1:]
reader = gguf.GGUFReader(source)
writer = gguf.GGUFWriter(out, "llama")
for key, field in reader.fields.items():
    if key.startswith("tokenizer."):
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=sub)

vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
hidden, inner, heads, kv, blocks = 2048, 8192, 32, 8, 28
writer.add_quantization_version(2)
writer.add_block_count(blocks)
writer.add_context_length(2048)
writer.add_embedding_length(hidden)
writer.add_feed_forward_length(inner)
writer.add_head_count(heads)
writer.add_head_count_kv(kv)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_freq_base(10000.0)
writer.add_vocab_size(vocab)

random = np.random.default_rng(0)


def matrix(name, rows, cols):
    data = random.integers(0, 256, (rows, cols // 256, 144), dtype=np.uint8)
    scales = random.uniform(1e-5, 1e-4, (rows, cols // 256, 2)).astype(np.float16)
    data[:, :, :4] = scales.view(np.uint8)
    writer.add_tensor(name, data.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_K)


matrix("token_embd.weight", vocab, hidden)
for block in range(blocks):
    for name in "attn_norm", "ffn_norm":
        writer.add_tensor(f"blk.{block}.{name}.weight", np.ones(hidden, np.float32))
    for name, rows, cols in [
        ("attn_q", hidden, hidden), ("attn_k", hidden * kv // heads, hidden), ("attn_v", hidden * kv // heads, hidden),
        ("attn_output", hidden, hidden), ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden),
        ("ffn_down", hidden, inner),
    ]:
        matrix(f"blk.{block}.{name}.weight", rows, cols)
writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
