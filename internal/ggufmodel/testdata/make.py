"""Writes small GGUF files of many architectures with llama.cpp's own converter, each beside what the Hugging Face checkpoint was that it
was given: its config.json, and of every tensor the shape and a hash of its values in float32. The tests of ggufmodel compare with them.

    python internal/ggufmodel/testdata/make.py LLAMA.CPP OUT [--only NAME,...] [--wide N]

LLAMA.CPP is a source tree of llama.cpp (the package llama-cpp-python has one under vendor). Needs torch, transformers, safetensors and
numpy in the versions of compare/interop.sh. Weights are numbers of bfloat16, so that the files are half as large and lose nothing.
--wide writes N further checkpoints of each architecture with other shapes, in F32, F16 and BF16, and with fused projections."""
import argparse
import copy
import hashlib
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as t
from safetensors.torch import load_file, save_file

SLIDING, FULL = "sliding_attention", "full_attention"
BASE = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, vocab_size=24, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def base(**kw):
    return {**BASE, **kw}


def rope(theta=10000.0, **kw):
    return {"rope_type": kw.pop("kind", "default"), "rope_theta": theta, **kw}


LLAMA3 = rope(5e5, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
YARN = rope(1e4, kind="yarn", factor=4.0, original_max_position_embeddings=16)
GRANITE = dict(embedding_multiplier=3.0, logits_scaling=2.5, residual_multiplier=0.35, attention_multiplier=0.2)
DEEP = dict(num_key_value_heads=4, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=5, intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1)
DEEPYARN = rope(1e4, kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.707, mscale_all_dim=0.707,
                beta_fast=32.0, beta_slow=1.0)
GPT2 = dict(n_embd=16, n_layer=2, n_head=4, n_positions=32, vocab_size=24, bos_token_id=None, eos_token_id=None)

# name: (class, configuration, keys that the converter wants and the class has dropped)
families = {
    "llama": ("Llama", base(rope_parameters=rope(5e5), tie_word_embeddings=True), {}),
    "llama-biases": ("Llama", base(head_dim=6, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3), {}),
    "mixtral": ("Mixtral", base(num_local_experts=2, num_experts_per_tok=2, sliding_window=None, rope_parameters=rope(1e6)), {}),
    "qwen2": ("Qwen2", base(rope_parameters=rope(1e6)), {}),
    "qwen2-yarn": ("Qwen2", base(num_hidden_layers=1, tie_word_embeddings=True, rope_parameters=YARN), {}),
    "qwen2_moe": ("Qwen2Moe", base(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=10, shared_expert_intermediate_size=14,
                                   rope_parameters=rope(1e6)), {}),
    "qwen3": ("Qwen3", base(head_dim=6, tie_word_embeddings=True, rope_parameters=rope(1e6)), {}),
    "qwen3_moe": ("Qwen3Moe", base(head_dim=6, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=10, norm_topk_prob=True,
                                   rope_parameters=rope(1e6)), {}),
    "phi": ("Phi", base(num_key_value_heads=4, intermediate_size=64, rope_parameters=rope(partial_rotary_factor=0.5)), {}),
    "phi3": ("Phi3", base(original_max_position_embeddings=64, sliding_window=9, rope_parameters=rope()), {}),
    "phi3-long": ("Phi3", base(original_max_position_embeddings=16, sliding_window=None, tie_word_embeddings=True,
                               rope_parameters=rope(kind="longrope", original_max_position_embeddings=16, short_factor=[1.0, 1.25],
                                                    long_factor=[2.5, 4.0])), {}),
    "gemma2": ("Gemma2", base(head_dim=6, query_pre_attn_scalar=6, sliding_window=6, rope_parameters=rope()), {}),
    "gemma3": ("Gemma3Text", base(head_dim=6, num_hidden_layers=6, intermediate_size=8, sliding_window=6, query_pre_attn_scalar=6,
                                  rope_parameters={FULL: rope(1e6, kind="linear", factor=8.0), SLIDING: rope(1e4)}), {}),
    "gpt2": ("GPT2", GPT2, {"n_ctx": 32}),
    "gpt_neox": ("GPTNeoX", {k: v for k, v in base(rope_parameters=rope(partial_rotary_factor=0.5)).items() if k != "num_key_value_heads"},
                 {"rotary_pct": 0.5, "rotary_emb_base": 10000.0}),
    "olmo2": ("Olmo2", base(rope_parameters=rope(5e5)), {}),
    "olmo3": ("Olmo3", base(num_hidden_layers=4, intermediate_size=8, sliding_window=6,
                            rope_parameters={FULL: dict(YARN, attention_factor=1.25), SLIDING: rope(1e4)}), {}),
    "olmoe": ("Olmoe", base(num_experts=3, num_experts_per_tok=2, intermediate_size=8, norm_topk_prob=False, rope_parameters=rope()), {}),
    "stablelm": ("StableLm", base(use_qkv_bias=True, rope_parameters=rope(partial_rotary_factor=0.5)), {}),
    "stablelm-parallel": ("StableLm", base(use_parallel_residual=True, rope_parameters=rope(partial_rotary_factor=0.5)), {}),
    "starcoder2": ("Starcoder2", base(sliding_window=None, rope_parameters=rope(1e5)), {}),
    "falcon": ("Falcon", dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, vocab_size=24, new_decoder_architecture=True,
                              num_kv_heads=2, bos_token_id=None, eos_token_id=None, max_position_embeddings=2048, rope_parameters=rope()), {}),
    "falcon-7b": ("Falcon", dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, vocab_size=24, multi_query=True, num_kv_heads=1,
                                 bos_token_id=None, eos_token_id=None, max_position_embeddings=2048, rope_parameters=rope()), {}),
    "cohere": ("Cohere", base(use_qk_norm=True, logit_scale=0.25, rope_parameters=rope(8e4)), {}),
    "cohere2": ("Cohere2", base(num_hidden_layers=4, intermediate_size=8, sliding_window=6, logit_scale=0.5, rope_parameters=rope(5e4)),
                {"rotary_pct": 1.0}),
    "granite": ("Granite", base(**GRANITE, tie_word_embeddings=True, rope_parameters=rope()), {}),
    "granitemoeshared": ("GraniteMoeShared", base(**GRANITE, num_local_experts=3, num_experts_per_tok=2, intermediate_size=8,
                                                  shared_intermediate_size=10, tie_word_embeddings=True, rope_parameters=rope()), {}),
    "smollm3": ("SmolLM3", base(num_hidden_layers=4, intermediate_size=8, rope_parameters=rope(2e4)), {}),
    "glm": ("Glm", base(head_dim=4, rope_parameters=rope(partial_rotary_factor=0.5)), {"seq_length": 64, "layernorm_epsilon": 1.5625e-07}),
    "glm4": ("Glm4", base(head_dim=8, rope_parameters=rope(partial_rotary_factor=0.5)), {}),
    "glm4_moe": ("Glm4Moe", base(head_dim=8, attention_bias=True, use_qk_norm=True, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
                                 topk_group=1, moe_intermediate_size=6, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
                                 norm_topk_prob=True, rope_parameters=rope(partial_rotary_factor=0.5)), {"num_nextn_predict_layers": 0}),
    "deepseek_v2": ("DeepseekV2", base(**DEEP, q_lora_rank=None, topk_method="group_limited_greedy", n_group=2, topk_group=1,
                                       routed_scaling_factor=2.0, rope_parameters=DEEPYARN), {}),
    "deepseek_v3": ("DeepseekV3", base(**DEEP, q_lora_rank=10, routed_scaling_factor=2.5, n_group=2, topk_group=1, norm_topk_prob=True,
                                       rope_parameters=rope()), {"scoring_func": "sigmoid"}),
    "gpt_oss": ("GptOss", base(head_dim=6, num_local_experts=3, num_experts_per_tok=2, intermediate_size=8, sliding_window=6,
                               rope_parameters=dict(YARN, truncate=False, beta_fast=32.0, beta_slow=1.0)), {}),
}

# What --wide writes beside them.
more = {
    "mistral": ("Mistral", base(sliding_window=None, head_dim=8, rope_parameters=rope(1e6)), {}),
    "granitemoe": ("GraniteMoe", base(**GRANITE, num_local_experts=3, num_experts_per_tok=2, intermediate_size=8,
                                      tie_word_embeddings=True, rope_parameters=rope()), {}),
}


def model_class(name):
    return getattr(t, {"Gemma3Text": "Gemma3", "GPT2": "GPT2LMHeadModel"}.get(name, name) + ("" if name == "GPT2" else "ForCausalLM"))


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        named = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "correction_bias" in n]
        for name, p in named:
            x = torch.empty(p.shape).normal_(0, 0.2, generator=g)
            if "norm" in name or "ln_" in name:  # 1 is added to some and taken off again
                x = torch.round(x.clamp(-0.5, 0.5) * 1024) / 1024 + 0.0
            p.copy_(x.to(torch.bfloat16).float())


def convert(conversion, folder, extra, out, kind, **fused):
    hparams = {**conversion.ModelBase.load_hparams(folder, False), **extra}
    cls = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
    plain = type(cls.__name__, (cls,), {"model_arch": cls.model_arch, "set_vocab": lambda self: self.gguf_writer.add_tokenizer_model("none")})
    with torch.inference_mode():
        plain(folder, kind, out, model_name="tiny", hparams=hparams, **fused).write()


def digest(x):
    return hashlib.sha256(x.float().contiguous().numpy().astype("<f4").tobytes()).hexdigest()[:16]


def make(conversion, name, cls, kwargs, extra, out, seed, kind="MOSTLY_BF16", **fused):
    import gguf
    config = getattr(t, cls + "Config")(**copy.deepcopy(kwargs))
    model = model_class(cls)(config).eval().float()
    fill(model, seed)
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d) / "tiny"
        model.save_pretrained(folder)
        with open(folder / "config.json") as f:
            written = json.load(f)
        with open(folder / "tokenizer.json", "w") as f:  # of the length that the table has
            json.dump({"model": {"vocab": {str(i): i for i in range(config.vocab_size)}}, "added_tokens": []}, f)
        tensors = load_file(folder / "model.safetensors")
        if kind == "MOSTLY_F16":
            tensors = {n: (x.half().float() if x.dim() > 1 else x) for n, x in tensors.items()}
            save_file({n: x.contiguous() for n, x in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
        convert(conversion, folder, extra, Path(out) / (name + ".gguf"), gguf.LlamaFileType[kind], **fused)
    with open(os.path.join(out, name + ".json"), "w") as f:
        lines = ",\n  ".join(f'"{n}": {json.dumps([list(x.shape), digest(x)])}' for n, x in sorted(tensors.items()))
        f.write('{"config": ' + json.dumps(written) + ',\n "tensors": {\n  ' + lines + "\n }\n}\n")
    print(name, os.path.getsize(os.path.join(out, name + ".gguf")), flush=True)


def widen(kwargs, rng):
    """The same with other shapes."""
    kw = copy.deepcopy(kwargs)
    if "n_embd" in kw:
        kw.update(n_head=rng.choice([2, 3]), n_layer=rng.randint(1, 3))
        kw["n_embd"] = kw["n_head"] * rng.choice([8, 12])
        return kw
    kv, times, head = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([8, 12, 16])
    same = kw.get("num_key_value_heads") in (None, kw.get("num_attention_heads"))
    kw["num_attention_heads"] = kv * times
    if "num_key_value_heads" in kw:
        kw["num_key_value_heads"] = kv * times if same else kv
    if "num_kv_heads" in kw and kw.get("new_decoder_architecture"):
        kw["num_kv_heads"] = kv
    kw["hidden_size"] = kv * times * head
    if "head_dim" in kw:
        kw["head_dim"] = head
    if "query_pre_attn_scalar" in kw:
        kw["query_pre_attn_scalar"] = head
    if kw.get("intermediate_size") == 64:
        kw["intermediate_size"] = 4 * kw["hidden_size"]
    elif "intermediate_size" in kw:
        kw["intermediate_size"] = rng.choice([20, 36, 44])
    for key, choices in {"moe_intermediate_size": [7, 12], "vocab_size": [41, 64], "kv_lora_rank": [9, 16], "q_lora_rank": [7, 12],
                         "qk_nope_head_dim": [6, 10], "qk_rope_head_dim": [4, 6], "v_head_dim": [5, 9], "num_local_experts": [2, 5],
                         "num_experts": [2, 5], "n_routed_experts": [4, 8], "shared_expert_intermediate_size": [9, 16],
                         "shared_intermediate_size": [6, 14], "num_hidden_layers": [1, 3, 5]}.items():
        if kw.get(key) is not None and not (key == "num_hidden_layers" and isinstance(kw.get("rope_parameters", {}).get(FULL), dict)):
            kw[key] = rng.choice(choices)
    for params in [kw.get("rope_parameters", {})] + [v for v in kw.get("rope_parameters", {}).values() if isinstance(v, dict)]:
        for key in ("short_factor", "long_factor"):
            if key in params:
                params[key] = [1.0 + rng.randint(0, 64) / 16 for _ in range(head // 2)]
    if "tie_word_embeddings" in kw and not kw.get("multi_query"):
        kw["tie_word_embeddings"] = rng.random() < 0.5
    return kw


def main():
    a = argparse.ArgumentParser()
    a.add_argument("llama")
    a.add_argument("out")
    a.add_argument("--only", default="")
    a.add_argument("--wide", type=int, default=0)
    a = a.parse_args()
    sys.path[:0] = [a.llama, os.path.join(a.llama, "gguf-py")]
    import conversion
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.makedirs(a.out, exist_ok=True)
    only = a.only.split(",") if a.only else []
    for i, (name, (cls, kwargs, extra)) in enumerate({**families, **(more if a.wide else {})}.items()):
        if only and name not in only:
            continue
        if not a.wide:
            make(conversion, name, cls, kwargs, extra, a.out, i)
        for n in range(a.wide):
            rng = random.Random(f"{name} {n}")
            kind = rng.choice(["ALL_F32", "MOSTLY_F16", "MOSTLY_BF16"])
            gate_up = name in ("qwen3_moe", "glm4_moe") and rng.random() < 0.5  # the converter has no name for others'
            fused = {"fuse_qkv": rng.random() < 0.3, "fuse_gate_up_exps": gate_up}
            try:
                make(conversion, f"{name}-{n}", cls, widen(kwargs, rng), extra, a.out, 1000 + n, kind, **fused)
            except Exception as e:
                print(f"{name}-{n}: {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    main()
