# Makes the adapters of this folder with the PEFT library: one folder for each combination of options, over small bases with random weights.
# expected.safetensors holds token ids and the logits that the library computes with the adapter it has saved and loaded again.
# Run in this folder: python generate.py [NAME …]   (made with peft 0.21.2, transformers 5.23, torch 2.15)
import torch, json, os, sys, warnings
warnings.filterwarnings("ignore")
from transformers import LlamaConfig, LlamaForCausalLM, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM, OPTConfig, OPTForCausalLM
from peft import LoraConfig, MissConfig, ShiraConfig, GraloraConfig, get_peft_model, PeftModel
from safetensors.torch import save_file
R="."
def base(name, m):
    torch.manual_seed(sum(map(ord,name)))
    for p in m.parameters(): p.data.normal_(0, .3 if p.dim()>1 else .1)
    for n,p in m.named_parameters():
        if 'norm' in n or 'ln_' in n:
            if n.endswith('weight'): p.data.add_(1)
    m.eval(); m.save_pretrained(f"{R}/base-{name}")
    for f in ("generation_config.json",):
        if os.path.exists(f"{R}/base-{name}/{f}"): os.remove(f"{R}/base-{name}/{f}")
def mk():
    L=dict(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)
    base("llama", LlamaForCausalLM(LlamaConfig(**L, tie_word_embeddings=False)))
    base("llamatied", LlamaForCausalLM(LlamaConfig(**L, tie_word_embeddings=True)))
    base("llamabias", LlamaForCausalLM(LlamaConfig(**L, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)))
    base("qwen2", Qwen2ForCausalLM(Qwen2Config(**L, tie_word_embeddings=True)))
    base("gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)))
    base("opt", OPTForCausalLM(OPTConfig(vocab_size=31, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16, word_embed_proj_dim=16)))
only=sys.argv[1:]
if not only: mk()
from transformers import AutoModelForCausalLM
cases = {
 "llama_qv": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"])),
 "llama_alllinear": ("llama", dict(r=4, lora_alpha=8, target_modules="all-linear")),
 "llama_rslora_patterns": ("llama", dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj","v_proj","down_proj"], rank_pattern={"q_proj":2, r"layers\.1\.self_attn\.v_proj":7}, alpha_pattern={r"^model\.layers\.2\..*":3})),
 "llama_patterns2": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj","o_proj"], rank_pattern={r"model.layers.0.self_attn.q_proj":2}, alpha_pattern={"o_proj":2,"q_proj":12})),
 "llama_dora": ("llama", dict(r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj","k_proj","down_proj"])),
 "llama_dora_rslora": ("llama", dict(r=4, lora_alpha=8, use_dora=True, use_rslora=True, target_modules=["q_proj","k_proj","down_proj"])),
 "llama_regex": ("llama", dict(r=3, lora_alpha=8, target_modules=r".*\.[12]\.(self_attn|mlp)\.(q_proj|gate_proj)")),
 "llama_lookahead": ("llama", dict(r=3, lora_alpha=8, target_modules=r"(?!.*layers\.1).*\.(q_proj|gate_proj)")),
 "llama_layers": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj","up_proj"], layers_to_transform=[0,2])),
 "llama_layers_pattern": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj","up_proj"], layers_to_transform=1, layers_pattern="layers")),
 "llama_exclude": ("llama", dict(r=3, lora_alpha=8, target_modules="all-linear", exclude_modules=["down_proj","model.layers.0.self_attn.q_proj"])),
 "llama_exclude_regex": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj","v_proj"], exclude_modules=r".*\.0\..*")),
 "llama_fullpaths": ("llama", dict(r=3, lora_alpha=8, target_modules=["model.layers.1.self_attn.q_proj","v_proj"])),
 "llama_save_head_norm": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["lm_head","norm"])),
 "llama_save_mlp": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["layers.1.mlp"])),
 "llama_save_embed": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
 "llama_embed": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj","embed_tokens"])),
 "llama_embed_head": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj","embed_tokens","lm_head"])),
 "llama_embed_dora": ("llama", dict(r=3, lora_alpha=8, use_dora=True, target_modules=["q_proj","embed_tokens"])),
 "llama_tokens": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices=[1,5,30])),
 "llama_tokens_dict": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices={"embed_tokens":[2,3],"lm_head":[4]})),
 "llama_gaussian": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], init_lora_weights="gaussian")),
 "llama_initfalse": ("llama", dict(r=3, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False)),
 "llama_orthogonal": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights="orthogonal")),
 "llama_pissa": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"], init_lora_weights="pissa")),
 "llama_olora": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"], init_lora_weights="olora")),
 "llamabias_all": ("llamabias", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"], bias="all")),
 "llamabias_only": ("llamabias", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"], bias="lora_only")),
 "llamabias_lorabias": ("llamabias", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"], lora_bias=True)),
 "llamabias_dora": ("llamabias", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj"], use_dora=True)),
 "tied_embed": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj","embed_tokens"])),
 "tied_head": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj","lm_head"])),
 "tied_save_head": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["lm_head"])),
 "tied_save_embed": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
 "tied_save_embed_ensure": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
 "tied_embed_ensure": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj","embed_tokens"], ensure_weight_tying=True)),
 "tied_tokens": ("llamatied", dict(r=3, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices=[1,5,30])),
 "qwen_qkv": ("qwen2", dict(r=4, lora_alpha=8, target_modules=["q_proj","k_proj","v_proj"], bias="lora_only")),
 "gpt2_attn_proj": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn","c_proj"], fan_in_fan_out=True)),
 "gpt2_dora": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn","c_proj","c_fc"], use_dora=True, fan_in_fan_out=True)),
 "gpt2_wte": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn","wte"], fan_in_fan_out=True)),
 "gpt2_biasall": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn"], bias="all", fan_in_fan_out=True)),
 "gpt2_lorabias": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn"], lora_bias=True, fan_in_fan_out=True)),
 "gpt2_layers": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn"], layers_to_transform=[1], layers_pattern="h", fan_in_fan_out=True)),
 "opt_qv": ("opt", dict(r=4, lora_alpha=8, target_modules=["q_proj","v_proj","fc1"])),
 "miss_qdown": ("llama", dict(kind=MissConfig, r=4, target_modules=["q_proj","down_proj"])),
 "miss_odd": ("llamabias", dict(kind=MissConfig, r=5, target_modules="all-linear", miss_dropout=.1, bias="all")),
 "miss_mini": ("llama", dict(kind=MissConfig, r=3, mini_r=4, init_weights="mini", target_modules=["q_proj","up_proj","down_proj"])),
 "miss_layers_save": ("qwen2", dict(kind=MissConfig, r=2, target_modules=["q_proj","v_proj"], layers_to_transform=[0,2], modules_to_save=["norm"])),
 "shira_random": ("llama", dict(kind=ShiraConfig, r=2, random_seed=7, target_modules=["q_proj","k_proj","down_proj"])),
 "shira_save": ("llamatied", dict(kind=ShiraConfig, r=3, target_modules=r".*\.[12]\..*up_proj", modules_to_save=["norm"])),
 "gralora_k2": ("llama", dict(kind=GraloraConfig, r=4, alpha=8, gralora_k=2, target_modules=["q_proj","v_proj","down_proj"])),
 "gralora_hybrid": ("llamabias", dict(kind=GraloraConfig, r=8, alpha=6, gralora_k=4, hybrid_r=3, gralora_dropout=.1, target_modules="all-linear", bias="gralora_only")),
 "gralora_gpt2": ("gpt2", dict(kind=GraloraConfig, r=4, alpha=8, gralora_k=2, hybrid_r=1, target_modules=["c_attn","c_fc"], fan_in_fan_out=True)),
}
torch.manual_seed(0)
ids=torch.randint(0,31,(2,7))
for name,(b,kw) in cases.items():
    if only and name not in only: continue
    try:
        torch.manual_seed(sum(map(ord,name)))
        m=AutoModelForCausalLM.from_pretrained(f"{R}/base-{b}"); m.eval()
        kw=dict(kw); kind=kw.pop("kind", LoraConfig)
        pm=get_peft_model(m, kind(task_type="CAUSAL_LM", **kw)); pm.eval()
        for n,p in pm.named_parameters():
            if p.requires_grad:
                if 'lora_magnitude' in n: p.data.mul_(1+.2*torch.randn_like(p))
                else: p.data.add_(.2*torch.randn_like(p))
        with torch.no_grad(): lt=pm(ids).logits
        d=f"{R}/{name}"; pm.save_pretrained(d)
        # reload: what PEFT computes from the files
        m=AutoModelForCausalLM.from_pretrained(f"{R}/base-{b}"); m.eval()
        pm=PeftModel.from_pretrained(m,d); pm.eval()
        with torch.no_grad(): l=pm(ids).logits
        note=""
        if (l-lt).abs().max()>1e-4: note+=f" reload differs {(l-lt).abs().max():.3g}"
        save_file({"input_ids":ids.int(),"logits":l.contiguous()},f"{d}/expected.safetensors")
        c=json.load(open(f"{d}/adapter_config.json")); c["base_model_name_or_path"]=f"base-{b}"
        json.dump(c,open(f"{d}/adapter_config.json","w"),indent=1,sort_keys=True)
        os.remove(f"{d}/README.md")
    except Exception as e:
        print(name,"FAILED",type(e).__name__,str(e)[:300])
