"""Writes small random checkpoints of many architectures, each with the numbers that transformers computes from it: logits, hidden
states, losses, gradients and a greedy continuation. lm's tests compare with them (lm/testdata/families).

    python compare/oracle.py OUT [--only NAME,...] [--variants]

Needs torch, transformers, safetensors and numpy in the versions of compare/interop.sh. The same versions give the same files up to the
rounding of float32 sums. --variants writes further shapes and options of the same families, which are too many to keep."""
import argparse
import copy
import json
import os
import shutil
import tempfile

import numpy as np
import torch
import transformers as t
from safetensors.numpy import load_file, save_file

TOKENS, GREEDY, PROMPT = 21, 12, 6

base = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, vocab_size=61, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def with_(*more, **kw):
    out = dict(base)
    for m in more:
        out.update(m)
    out.update(kw)
    return out


def falcon(**kw):
    return {k: v for k, v in with_(**kw).items() if k not in ("num_key_value_heads", "intermediate_size")}


def rope(theta=10000.0, **kw):
    return {"rope_type": kw.pop("kind", "default"), "rope_theta": theta, **kw}


sliding, full = "sliding_attention", "full_attention"
granite = dict(embedding_multiplier=3.0, logits_scaling=2.5, residual_multiplier=0.35, attention_multiplier=0.2)
llama3 = rope(5e5, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
yarn = rope(1e4, kind="yarn", factor=4.0, original_max_position_embeddings=16)
deep = dict(num_key_value_heads=4, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=8,
            num_experts_per_tok=3, moe_intermediate_size=5, intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1, n_group=4, topk_group=2)
deepyarn = rope(1e4, kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.8, mscale_all_dim=0.6,
                beta_fast=32, beta_slow=1)

# name: (class, configuration). Those of the first table are kept in the repository.
families = {
    "smollm3": ("SmolLM3", with_(num_hidden_layers=4, hidden_size=16, intermediate_size=24, num_attention_heads=2,
                                 num_key_value_heads=1, rope_parameters=rope(2e4))),
    "granite": ("Granite", with_(granite, attention_bias=True, rope_parameters=rope())),
    "olmo2": ("Olmo2", with_(rope_parameters=rope(5e5))),
    "olmo3": ("Olmo3", with_(num_hidden_layers=4, hidden_size=16, intermediate_size=24, num_attention_heads=2,
                             num_key_value_heads=2, sliding_window=6,
                             rope_parameters={full: dict(yarn, attention_factor=1.2), sliding: rope(1e4)})),
    "stablelm": ("StableLm", with_(use_qkv_bias=True, rope_parameters=rope(partial_rotary_factor=0.34))),
    "starcoder2": ("Starcoder2", with_(sliding_window=7, rope_parameters=rope(1e5))),
    "phi": ("Phi", with_(num_key_value_heads=4, rope_parameters=rope(partial_rotary_factor=0.67))),
    "phi4": ("Phi3", with_(original_max_position_embeddings=64, rope_parameters=rope(partial_rotary_factor=0.67), sliding_window=9,
                           tie_word_embeddings=True)),
    "cohere": ("Cohere", with_(use_qk_norm=True, logit_scale=0.3, rope_parameters=rope(8e4))),
    "cohere2": ("Cohere2", with_(num_hidden_layers=4, hidden_size=16, intermediate_size=24, num_attention_heads=2,
                                 num_key_value_heads=1, sliding_window=6, logit_scale=0.5, rope_parameters=rope(5e4))),
    "glm": ("Glm", with_(head_dim=8, rope_parameters=rope(partial_rotary_factor=0.5))),
    "glm4": ("Glm4", with_(head_dim=8, rope_parameters=rope(partial_rotary_factor=0.5))),
    "gemma3": ("Gemma3Text", with_(head_dim=8, hidden_size=20, intermediate_size=28, num_hidden_layers=3, layer_types=[sliding, full, sliding],
                                   sliding_window=6,
                                   query_pre_attn_scalar=10,
                                   rope_parameters={full: rope(1e6, kind="linear", factor=8.0), sliding: rope(1e4)})),
    "falcon": ("Falcon", falcon(new_decoder_architecture=True,
                               num_kv_heads=2, ffn_hidden_size=40, rope_parameters=rope())),
    "granitemoe": ("GraniteMoe", with_(granite, num_local_experts=5, num_experts_per_tok=2, intermediate_size=8,
                                       rope_parameters=rope())),
    "granitemoeshared": ("GraniteMoeShared", with_(granite, num_local_experts=4, num_experts_per_tok=2, intermediate_size=8,
                                                   shared_intermediate_size=16, rope_parameters=rope())),
    "granitemoehybrid": ("GraniteMoeHybrid", with_(granite, num_local_experts=4, num_experts_per_tok=2, intermediate_size=8,
                                                   shared_intermediate_size=16, layer_types=[full, full], mamba_n_heads=4,
                                                   mamba_d_head=12, position_embedding_type="rope", rope_parameters=rope())),
    "glm4_moe": ("Glm4Moe", with_(head_dim=8, attention_bias=True, n_routed_experts=8, num_experts_per_tok=2, use_qk_norm=True,
                                  moe_intermediate_size=6, intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
                                  rope_parameters=rope(partial_rotary_factor=0.5))),
    "deepseek_v2": ("DeepseekV2", with_(deep, q_lora_rank=None, topk_method="group_limited_greedy", n_routed_experts=8,
                                        routed_scaling_factor=2.0, rope_parameters=rope())),
    "deepseek_v3": ("DeepseekV3", with_(deep, q_lora_rank=10, routed_scaling_factor=2.5, rope_parameters=deepyarn)),
    "glm4_moe_lite": ("Glm4MoeLite", with_(deep, q_lora_rank=10, n_routed_experts=6, n_group=1, topk_group=1, v_head_dim=14, hidden_size=20, routed_scaling_factor=1.8,
                                           mlp_layer_types=["dense", "sparse"], rope_parameters=rope(1e6))),
    "gpt_oss": ("GptOss", with_(head_dim=8, num_local_experts=4, num_experts_per_tok=2, intermediate_size=8, sliding_window=6,
                                swiglu_limit=2.0, rope_parameters=dict(yarn, truncate=False))),
}

# Further options and shapes.
variants = {
    "smollm3-sliding": ("SmolLM3", with_(num_hidden_layers=3, no_rope_layers=[1, 0, 0], use_sliding_window=True, sliding_window=5,
                                         attention_bias=True, mlp_bias=True, tie_word_embeddings=False, rope_parameters=yarn)),
    "granite-plain": ("Granite", with_(num_attention_heads=6, num_key_value_heads=3, mlp_bias=True, tie_word_embeddings=True,
                                       attention_multiplier=0.35, rope_parameters=llama3)),
    "olmo2-mha": ("Olmo2", with_(num_attention_heads=3, num_key_value_heads=3, attention_bias=True, tie_word_embeddings=True,
                                 rope_parameters=llama3)),
    "olmo3-gqa": ("Olmo3", with_(num_hidden_layers=3, layer_types=[full, sliding, full], sliding_window=4,
                                 rope_parameters={full: rope(3e4), sliding: rope(3e4)})),
    "stablelm-parallel": ("StableLm", with_(use_parallel_residual=True, num_key_value_heads=4, tie_word_embeddings=True,
                                            rope_parameters=rope(partial_rotary_factor=1.0))),
    "stablelm-qknorm": ("StableLm", with_(qk_layernorm=True, rope_parameters=rope(partial_rotary_factor=0.34))),
    "starcoder2-plain": ("Starcoder2", with_(use_bias=False, tie_word_embeddings=False, rope_parameters=llama3)),
    "phi-qknorm": ("Phi", with_(qk_layernorm=True, rope_parameters=rope(partial_rotary_factor=0.4), num_attention_heads=2,
                                num_key_value_heads=1)),
    "phi4-long": ("Phi3", with_(original_max_position_embeddings=16,
                                rope_parameters=rope(kind="longrope", partial_rotary_factor=0.67, original_max_position_embeddings=16,
                                                     short_factor=[1.0, 1.3], long_factor=[2.0, 4.0]))),
    "cohere-plain": ("Cohere", with_(logit_scale=0.8, attention_bias=True, num_key_value_heads=4, tie_word_embeddings=False, rope_parameters=rope())),
    "cohere2-bias": ("Cohere2", with_(num_hidden_layers=3, layer_types=[full, sliding, sliding], sliding_window=5, attention_bias=True, logit_scale=0.7,
                                      tie_word_embeddings=False, rope_parameters=rope())),
    "glm-plain": ("Glm", with_(head_dim=12, attention_bias=False, tie_word_embeddings=True, rope_parameters=rope(partial_rotary_factor=1.0))),
    "glm4-plain": ("Glm4", with_(head_dim=12, num_key_value_heads=1, attention_bias=False,
                                 rope_parameters=rope(partial_rotary_factor=0.34))),
    "gemma3-caps": ("Gemma3Text", with_(head_dim=10, attention_bias=True, num_hidden_layers=7, hidden_size=16, intermediate_size=20,
                                        sliding_window=4, final_logit_softcapping=3.0, attn_logit_softcapping=4.0,
                                        tie_word_embeddings=False, rope_parameters={full: rope(1e6), sliding: rope(2e4)})),
    "falcon-7b": ("Falcon", falcon(multi_query=True, parallel_attn=True,
                                  rope_parameters=rope())),
    "falcon-bias": ("Falcon", falcon(multi_query=False, parallel_attn=False,
                                    bias=True, tie_word_embeddings=False, rope_parameters=rope())),
    "falcon-one-norm": ("Falcon", falcon(new_decoder_architecture=True,
                                        num_kv_heads=4, num_ln_in_parallel_attn=1, bias=True, rope_parameters=rope())),
    "granitemoe-tied": ("GraniteMoe", with_(num_local_experts=3, num_experts_per_tok=3, intermediate_size=12, attention_bias=True,
                                            tie_word_embeddings=True, attention_multiplier=0.3, rope_parameters=llama3)),
    "granitemoeshared-none": ("GraniteMoeShared", with_(granite, num_local_experts=4, num_experts_per_tok=1, intermediate_size=8,
                                                        shared_intermediate_size=0, rope_parameters=rope())),
    "granitemoehybrid-dense": ("GraniteMoeHybrid", with_(granite, num_local_experts=0, num_experts_per_tok=0, intermediate_size=8,
                                                         shared_intermediate_size=16, layer_types=[full, full], mamba_n_heads=4,
                                                         mamba_d_head=12, position_embedding_type="nope")),
    "glm4_moe-groups": ("Glm4Moe", with_(n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=8,
                                         norm_topk_prob=False, n_shared_experts=2, first_k_dense_replace=0,
                                         rope_parameters=rope(partial_rotary_factor=1.0))),
    "deepseek_v2-yarn": ("DeepseekV2", with_(deep, q_lora_rank=9, topk_method="greedy", v_head_dim=14, attention_bias=True,
                                             first_k_dense_replace=0, n_shared_experts=1, rope_parameters=deepyarn)),
    "deepseek_v3-noq": ("DeepseekV3", with_(deep, q_lora_rank=None, v_head_dim=12, norm_topk_prob=False, n_group=1, topk_group=1,
                                            attention_bias=True, rope_interleave=False, tie_word_embeddings=True,
                                            rope_parameters=rope())),
    "glm4_moe_lite-yarn": ("Glm4MoeLite", with_(deep, q_lora_rank=None, mlp_layer_types=["sparse", "sparse"], norm_topk_prob=False,
                                                attention_bias=True, rope_interleave=False, rope_parameters=deepyarn)),
    "gpt_oss-full": ("GptOss", with_(head_dim=4, num_local_experts=6, num_experts_per_tok=3, intermediate_size=10, num_hidden_layers=3,
                                     sliding_window=5, num_key_value_heads=4, rope_parameters=rope(15e4))),
}


def model_class(name):
    return getattr(t, {"Gemma3Text": "Gemma3"}.get(name, name) + "ForCausalLM")


def fill(model, seed):
    """Random weights, deliberately large, so that a wrong detail is visible in the logits."""
    g = torch.Generator().manual_seed(seed)
    plus_one = "Gemma3" in type(model).__name__
    with torch.no_grad():
        named = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "correction_bias" in n]
        for name, p in named:
            x = torch.empty(p.shape)
            if "correction_bias" in name:
                x.uniform_(-0.3, 0.3, generator=g)
            elif "norm" in name or "ln_" in name:
                x.uniform_(-0.1, 0.1, generator=g)
                if not plus_one and not name.endswith("bias"):
                    x += 1
            elif name.endswith("sinks"):
                x.normal_(0, 1, generator=g)
            elif p.dim() == 1 or name.endswith("bias"):
                x.uniform_(-0.1, 0.1, generator=g)
            elif "router" in name or "gate.weight" in name:
                x.normal_(0, 0.5, generator=g)
            else:
                x.normal_(0, 0.2, generator=g)
            p.copy_(x)


def layers_of(model):
    inner = getattr(model, "model", None) or model.transformer
    return getattr(inner, "layers", None) or inner.h


def run(model, ids):
    """Logits, hidden states before each block and after the last, and the losses of the tokens."""
    states, hooks = [], []
    layers = layers_of(model)

    def before(_, args, kwargs):
        states.append((args[0] if args else kwargs["hidden_states"]).detach())

    def after(_, __, out):
        states.append((out[0] if isinstance(out, tuple) else out).detach())

    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
    hooks.append(layers[len(layers) - 1].register_forward_hook(after))
    logits = model(input_ids=ids, use_cache=False).logits
    for h in hooks:
        h.remove()
    nll = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return logits, states, nll


def greedy(model, prompt, cached):
    """The continuation by the largest logit, and the smallest distance between the two largest."""
    ids, out, gap, past = torch.tensor([prompt]), [], float("inf"), None
    feed = ids
    for _ in range(GREEDY):
        with torch.no_grad():
            r = model(input_ids=feed if cached else ids, past_key_values=past, use_cache=cached)
        past = r.past_key_values if cached else None
        top = torch.topk(r.logits[0, -1], 2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        out.append(int(top.indices[0]))
        feed = torch.tensor([[out[-1]]])
        ids = torch.cat([ids, feed], 1)
    return out, gap


def saved(model):
    """The tensors of a model under the names and in the layout of its files."""
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        return load_file(os.path.join(d, "model.safetensors"))


def legacy(config):
    """config.json as version 4 of the library wrote it: the base of the frequencies outside, scaling in rope_scaling."""
    c = json.loads(json.dumps(config))
    c["torch_dtype"] = c.pop("dtype", "float32")
    c["transformers_version"] = "4.57.0"
    p = c.pop("rope_parameters", None)
    if not p:
        return c
    if "full_attention" in p:
        local, p = p["sliding_attention"], p["full_attention"]
        if c["model_type"] == "gemma3_text":
            c["rope_local_base_freq"] = local["rope_theta"]
        elif local["rope_theta"] != p["rope_theta"]:
            return None
    p = dict(p)
    c["rope_theta"] = p.pop("rope_theta")
    if "partial_rotary_factor" in p:
        c["partial_rotary_factor"] = p.pop("partial_rotary_factor")
    c["rope_scaling"] = p if p["rope_type"] != "default" else None
    return c


def make(name, cls, kwargs, out):
    for seed in range(1, 60):
        config = getattr(t, cls + "Config")(**copy.deepcopy(kwargs))
        config._attn_implementation = "eager"
        try:
            config._experts_implementation = "eager"
        except AttributeError:
            pass
        model = model_class(cls)(config).eval().float()
        fill(model, seed)
        ids = torch.randint(0, config.vocab_size, (2, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        ids[0, 3], ids[1, 5] = 0, config.vocab_size - 1
        prompt = ids[0, :PROMPT].tolist()
        new, gap = greedy(model, prompt, False)
        if gap > 0.02 and greedy(model, prompt, True)[0] == new:
            break
    else:
        raise SystemExit(f"{name}: no seed without near ties")

    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    weights = load_file(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json")) as f:
        written = json.load(f)
    old = legacy(written)
    if old:
        with open(os.path.join(folder, "config.legacy.json"), "w") as f:
            json.dump(old, f, indent=1, sort_keys=True)
            f.write("\n")

    logits, states, nll = run(model, ids)
    tensors = {"input_ids": ids.numpy(), "logits": logits.detach().numpy(), "loss_per_token": nll.detach().numpy()}
    for i, s in enumerate(states):
        tensors[f"hidden.{i}"] = s.numpy()
    nll.mean().backward()
    grads = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}

    # Saving the gradients as if they were weights gives them the names and layouts of the file.
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for n, p in twin.named_parameters():
            p.copy_(grads[n])
        for n, b in twin.named_buffers():
            if "correction_bias" in n:
                b.zero_()
    for n, g in saved(twin).items():
        tensors["grad." + n] = g

    double = copy.deepcopy(model).double()
    with torch.no_grad():
        exact, _, exact_nll = run(double, ids)
    top = float(exact.abs().max())
    save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, os.path.join(folder, "oracle.safetensors"))
    with open(os.path.join(folder, "oracle.json"), "w") as f:
        json.dump({
            "transformers": t.__version__, "class": model_class(cls).__name__, "seed": seed,
            "loss": float(nll.detach().double().mean()), "loss_float64": float(exact_nll.mean()),
            "num_parameters": int(sum(x.size for x in weights.values())),
            "logits_noise": float((logits.detach().double() - exact).abs().max()) / top, "max_abs_logit": top,
            "greedy": {"prompt": prompt, "new_tokens": new, "min_top2_gap": gap},
        }, f, indent=1)
        f.write("\n")
    size = sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder))
    print(f"{name}: seed {seed}, {size} bytes, logits to {top:.2f}, gap {gap:.3f}", flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--only", default="")
    a.add_argument("--variants", action="store_true")
    a = a.parse_args()
    torch.set_num_threads(1)
    only = a.only.split(",") if a.only else []
    for name, (cls, kwargs) in {**families, **(variants if a.variants else {})}.items():
        if not only or name in only:
            make(name, cls, kwargs, a.out)


if __name__ == "__main__":
    main()
