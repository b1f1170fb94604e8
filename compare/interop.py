"""Opens with transformers, PEFT, safetensors, mergekit and lm-eval what compress wrote, and with compress what they wrote, for every
architecture, and prints a table of what agreed, as Markdown and JSON. Run it by interop.sh, which sees to the peers."""

import argparse, collections, contextlib, importlib.metadata, io, json, logging, os, pathlib, platform, re, shutil, subprocess, sys, traceback, warnings

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")

# Relative to the largest logit: how far two float32 evaluations of these models may lie apart. The oracles' own noise is up to 4e-6 of it.
TOLERANCE = 2e-5
TEXT = """the baker of leeds sells bread and the mayor of seville plays the oboe. wanda brandt was born in leeds, and her
employer is heron. question: what is 14 plus 6? answer: 20. a small model reads the same few words again and again, until it knows that
the birthplace of leon pryce is oslo, that mira yates speaks spanish, and that nobody has ever asked for the zoo, a quiz, a jazz fox or 7 x 3 = 21.
"""
QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
LINES = ["the baker of leeds", "wanda brandt was born in seville.", "question: what is 14 plus 6? answer:", " two  spaces, and a quiz: 7 x 3 = 21", "Uppercase, é and 漢 are unknown to some", ""]
PROMPT = "the birthplace of leon pryce"
MLP = {"gate_proj", "up_proj", "down_proj"}


class Skip(Exception):
    """A check that one side does not offer for this architecture."""


# ---------------------------------------------------------------- models


def configs(vocab):
    """The configuration of a small model of every architecture, by model_type."""
    import transformers as t

    llama = dict(vocab_size=vocab, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=None, tie_word_embeddings=False)
    wide = dict(llama, head_dim=16)
    mha = dict(llama, num_key_value_heads=4)
    deep = dict(llama, num_hidden_layers=4)
    rope = lambda theta=10000.0, **kw: {"rope_type": "default", "rope_theta": theta, **kw}
    yarn = lambda **kw: rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, **kw)
    local, whole = "sliding_attention", "full_attention"
    part = {"rope_parameters": rope(partial_rotary_factor=0.5)}
    granite = dict(llama, embedding_multiplier=3.0, logits_scaling=2.5, residual_multiplier=0.35, attention_multiplier=0.2)
    experts = dict(num_local_experts=4, num_experts_per_tok=2)
    latent = dict(mha, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=2)
    return {
        "llama": t.LlamaConfig(**llama),
        "mistral": t.MistralConfig(**llama, sliding_window=16),
        "qwen2": t.Qwen2Config(**dict(llama, tie_word_embeddings=True)),
        "qwen3": t.Qwen3Config(**wide),
        "phi3": t.Phi3Config(**llama),
        "gemma2": t.Gemma2Config(**dict(wide, tie_word_embeddings=True), query_pre_attn_scalar=16, sliding_window=16),
        "mixtral": t.MixtralConfig(**llama, num_local_experts=4, num_experts_per_tok=2),
        "olmoe": t.OlmoeConfig(**llama, num_experts=4, num_experts_per_tok=2),
        "qwen2_moe": t.Qwen2MoeConfig(**llama, moe_intermediate_size=32, shared_expert_intermediate_size=40, num_experts=4, num_experts_per_tok=2),
        "qwen3_moe": t.Qwen3MoeConfig(**wide, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True),
        "gpt2": t.GPT2Config(vocab_size=vocab, n_embd=48, n_layer=2, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=1),
        "gptj": t.GPTJConfig(vocab_size=vocab, n_embd=48, n_layer=2, n_head=4, n_positions=128, rotary_dim=8, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False),
        "gpt_neox": t.GPTNeoXConfig(vocab_size=vocab, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=128, bos_token_id=0, eos_token_id=1),
        "opt": t.OPTConfig(vocab_size=vocab, hidden_size=48, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128, word_embed_proj_dim=48, bos_token_id=0, eos_token_id=1, pad_token_id=None),
        "phi": t.PhiConfig(**mha, **part),
        "gemma3_text": t.Gemma3TextConfig(**dict(wide, num_hidden_layers=3, tie_word_embeddings=True), query_pre_attn_scalar=16, sliding_window=16, layer_types=[local, whole, local],
                                          rope_parameters={whole: rope(1e6, rope_type="linear", factor=8.0), local: rope()}),
        "olmo2": t.Olmo2Config(**llama, rope_parameters=rope(5e5)),
        "olmo3": t.Olmo3Config(**deep, sliding_window=16, rope_parameters={whole: yarn(attention_factor=1.2), local: rope()}),
        "smollm3": t.SmolLM3Config(**dict(deep, tie_word_embeddings=True), rope_parameters=rope(2e4)),
        "granite": t.GraniteConfig(**granite),
        "granitemoe": t.GraniteMoeConfig(**granite, **experts),
        "granitemoeshared": t.GraniteMoeSharedConfig(**granite, **experts, shared_intermediate_size=40),
        "granitemoehybrid": t.GraniteMoeHybridConfig(**granite, **experts, shared_intermediate_size=40, layer_types=[whole, whole], mamba_n_heads=4, mamba_d_head=24, position_embedding_type="nope"),
        "glm": t.GlmConfig(**wide, **part),
        "glm4": t.Glm4Config(**wide, **part),
        "glm4_moe": t.Glm4MoeConfig(**wide, **part, attention_bias=True, use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1,
                                    routed_scaling_factor=1.5),
        "glm4_moe_lite": t.Glm4MoeLiteConfig(**latent, q_lora_rank=20, n_group=1, topk_group=1, routed_scaling_factor=1.8, mlp_layer_types=["dense", "sparse"], rope_parameters=rope(1e6)),
        "stablelm": t.StableLmConfig(**llama, use_qkv_bias=True, **part),
        "starcoder2": t.Starcoder2Config(**dict(llama, tie_word_embeddings=True), sliding_window=16),
        "cohere": t.CohereConfig(**dict(llama, tie_word_embeddings=True), use_qk_norm=True, logit_scale=0.3),
        "cohere2": t.Cohere2Config(**dict(deep, tie_word_embeddings=True), sliding_window=16, logit_scale=0.5),
        "falcon": t.FalconConfig(vocab_size=vocab, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2, ffn_hidden_size=96, new_decoder_architecture=True,
                                 max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=None, tie_word_embeddings=True),
        "deepseek_v2": t.DeepseekV2Config(**latent, q_lora_rank=None, n_group=4, topk_group=2, first_k_dense_replace=1, topk_method="group_limited_greedy", routed_scaling_factor=2.0),
        "deepseek_v3": t.DeepseekV3Config(**latent, q_lora_rank=20, n_group=4, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=2.5, rope_parameters=yarn(mscale=0.8, mscale_all_dim=0.6)),
        "gpt_oss": t.GptOssConfig(**wide, **experts, sliding_window=16, swiglu_limit=2.0, layer_types=[local, whole], rope_parameters=yarn(truncate=False)),
    }


def tokenizer(vocab, kind):
    """A tokenizer trained on TEXT: by bytes as GPT-2's or Qwen's, or with word marks as Llama's. Byte tokens only where the vocabulary has room."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>"]
    room = vocab >= 300
    if kind in ("bytes", "qwen"):
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        if kind == "qwen":  # transformers takes these for models of that name, whatever tokenizer.json says
            tok.normalizer = normalizers.NFC()
            tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet() if room else []
    else:
        tok = Tokenizer(models.BPE(byte_fallback=room))
        tok.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for the training alone, as Llama's has none
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)])
        alphabet = []
        special += ["<0x%02X>" % i for i in range(256)] if room else []
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator([TEXT], trainer)
    state = json.loads(tok.to_str())  # byte tokens are no special ones, whatever the trainer made of them
    if kind == "words":
        state["pre_tokenizer"] = None
    state["added_tokens"] = [a for a in state["added_tokens"] if not a["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False)


def randomise(model, seed):
    """Large weights, so that a wrong detail shows in the logits."""
    import torch

    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=g)
            if p.dim() > 1:
                p.copy_(0.2 * noise)
            else:
                p.add_(0.1 * noise)
        for n, b in sorted(model.named_buffers()):
            if n.endswith("correction_bias"):
                b.copy_(0.2 * torch.randn(b.shape, generator=g))
    return model.eval()


def save(model, tok, path, **how):
    with quiet():
        model.save_pretrained(path, **how)
        if tok is not None:
            tok.save_pretrained(path)
    return path


def cases(oracle):
    """Yields (name, make) where make() gives a model; the oracles' checkpoints first, then one drawn here of every architecture."""
    import torch
    from transformers import AutoModelForCausalLM

    if oracle:
        for d in sorted(pathlib.Path(oracle, "models").iterdir()):
            if (d / "config.json").exists() and (d / "oracle.safetensors").exists():
                yield f"oracle {d.name}", lambda d=d: AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
    for name in configs(320):
        def make(name=name):
            torch.manual_seed(1)
            return randomise(AutoModelForCausalLM.from_config(configs(320)[name], attn_implementation="eager"), 1)
        yield name, make


# ---------------------------------------------------------------- both sides


@contextlib.contextmanager
def quiet():
    """Collects what is printed and logged."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setLevel(logging.WARNING)
    roots = [logging.getLogger(n) for n in ("transformers", "peft")]
    before = [(r.handlers[:], r.propagate) for r in roots]
    for r in roots:
        r.handlers, r.propagate = [handler], False
    with warnings.catch_warnings(record=True) as seen, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        warnings.simplefilter("always")
        try:
            yield text
        finally:
            for r, (h, p) in zip(roots, before):
                r.handlers, r.propagate = h, p
            text.write("".join(f"{w.message}\n" for w in seen if not issubclass(w.category, (DeprecationWarning, FutureWarning))))


class Ours:
    """The program under test."""

    def __init__(self, program, work):
        self.program, self.work, self.n = program, work, 0

    def __call__(self, *args, out=None):
        """Runs a verb; an error is what it says."""
        args = [str(a) for a in args]
        if out is not None:
            shutil.rmtree(out, ignore_errors=True)
            args += ["--out", str(out)]
        r = subprocess.run([self.program, *args, "--quiet", "--device", "cpu"], capture_output=True, text=True, timeout=600)
        if r.returncode:
            raise AssertionError(f"compress {args[0]}: {(r.stderr.strip() or r.stdout.strip()).splitlines()[-1][:300]}")
        return r.stdout

    def says(self, *args):
        """What a verb says to people, whether or not it fails."""
        r = subprocess.run([self.program, *map(str, args), "--device", "cpu"], capture_output=True, text=True, timeout=600)
        return r.stdout + r.stderr

    def json(self, *args):
        return json.loads(self(*args, "--json"))

    def logits(self, model, ids, *more):
        from safetensors.torch import load_file, save_file

        self.n += 1
        a, b = self.work / f"ids{self.n}.safetensors", self.work / f"logits{self.n}.safetensors"
        save_file({"input_ids": ids}, a)
        self("forward", model, "--ids", a, "--out", b, *more)
        got = load_file(b)["logits"]
        a.unlink(), b.unlink()
        return got


def theirs(path, **more):
    """Loads a checkpoint with transformers and insists that every tensor has found its place without a word."""
    import torch
    from transformers import AutoModelForCausalLM

    with quiet() as text:
        model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **more)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(key), f"transformers: {key}: {sorted(map(str, info[key]))[:3]}"
    said = [l for l in text.getvalue().splitlines() if any(w in l.lower() for w in ("missing", "unexpected", "mismatch", "newly initialized", "not used"))]
    assert not said, f"transformers: {said[0][:200]}"
    return model.eval()


def logits(model, ids):
    import torch

    with torch.no_grad():
        return model(ids, use_cache=False).logits.float()


def near(got, want, tolerance=TOLERANCE):
    """The largest difference, relative to the largest value."""
    assert got.shape == want.shape, f"shape {list(got.shape)}, want {list(want.shape)}"
    d = float((got.double() - want.double()).abs().max() / max(1.0, float(want.abs().max())))
    assert d <= tolerance, f"apart by {d:.2g} of the largest"
    return d


def opened(folder, tied=()):
    """Opens every file of a folder with safetensors and reads all of it; gives the names."""
    from safetensors import safe_open

    names = set()
    files = sorted(pathlib.Path(folder).glob("*.safetensors"))
    assert files, f"{folder}: no files"
    for f in files:
        with safe_open(f, "pt") as s:
            meta = s.metadata() or {}
            assert meta.get("format") == "pt" or "adapter" in f.name, f"{f.name}: metadata {meta}"
            for k in s.keys():
                s.get_tensor(k)
                names.add(k)
    index = pathlib.Path(folder, "model.safetensors.index.json")
    if len(files) > 1:
        where = json.loads(index.read_text())["weight_map"]
        assert set(where) == names, "the index does not list what the files hold"
    return len(names)


def opened_names(folder):
    """The names of a folder's tensors."""
    from safetensors import safe_open

    names = []
    for f in pathlib.Path(folder).glob("*.safetensors"):
        with safe_open(f, "pt") as s:
            names += s.keys()
    return names


# ---------------------------------------------------------------- checks


class Case:
    """One model and everything that is tried with it."""

    def __init__(self, name, model, ours, work):
        import torch

        self.name, self.model, self.ours, self.work = name, model, ours, work
        c = model.config
        self.vocab = c.vocab_size
        self.kind = "qwen" if c.model_type.startswith("qwen") else "bytes" if c.model_type in ("gpt2", "gptj", "gpt_neox", "opt", "olmoe") else "words"
        self.tok = tokenizer(self.vocab, self.kind)
        g = torch.Generator().manual_seed(7)
        self.ids = torch.randint(0, self.vocab, (2, 40), generator=g)
        self.want = logits(model, self.ids)
        self.base = save(model, self.tok, work / "base")
        tuned = type(model)(c).eval()
        tuned.load_state_dict(model.state_dict())
        with torch.no_grad():
            for n, p in sorted(tuned.named_parameters()):
                p.add_(0.02 * torch.randn(p.shape, generator=g))
        self.tuned_model, self.tuned = tuned, save(tuned, self.tok, work / "tuned")
        self.text = work / "text.txt"
        self.text.write_text(TEXT * 4)

    def mixture(self):
        return any(getattr(self.model.config, k, 0) for k in ("num_local_experts", "num_experts", "n_routed_experts"))

    def dense_first(self):
        """Reports whether the first layer of a mixture has no experts."""
        c = self.model.config
        return bool(getattr(c, "first_k_dense_replace", 0)) or getattr(c, "mlp_layer_types", ["sparse"])[0] == "dense"

    def dir(self, name):
        return self.work / name

    def agree(self, folder, want=None):
        """A folder that compress wrote: transformers opens it without a word, and the logits are ours, and those wanted."""
        got = logits(theirs(folder), self.ids)
        d = near(self.ours.logits(folder, self.ids), got)
        if want is not None:
            d = max(d, near(got, want, 1e-4))
        return d

    # what transformers wrote, read by compress

    def inspect(self):
        self.ours("inspect", self.base, "--verify")

    def forward(self):
        return near(self.ours.logits(self.base, self.ids), self.want)

    def forward_sharded(self):
        d = save(self.model, self.tok, self.dir("shards"), max_shard_size="40KB")
        assert len(list(d.glob("*.safetensors"))) > 1, "one shard only"
        return near(self.ours.logits(d, self.ids), self.want)

    def forward_bf16(self):
        import copy, torch

        half = save(copy.deepcopy(self.model).to(torch.bfloat16), self.tok, self.dir("bf16"))
        return near(self.ours.logits(half, self.ids), logits(theirs(half), self.ids))

    def tokenize(self):
        file = self.work / "lines.jsonl"
        file.write_text("".join(json.dumps(l) + "\n" for l in LINES))
        from transformers import AutoTokenizer

        with quiet():
            tok = AutoTokenizer.from_pretrained(self.base)
        got = self.ours.json("tokenize", self.base, "--file", file)
        for line, ids in zip(LINES, got, strict=True):
            want = tok(line)["input_ids"]
            assert ids == want, f"{line!r}: {ids}, transformers {want}"
        back = self.ours("tokenize", self.base, "--decode", "--text", " ".join(map(str, got[1]))).rstrip("\n")
        assert back == tok.decode(got[1]), f"decoded {back!r}, transformers {tok.decode(got[1])!r}"

    def generate(self):
        import torch

        ids = torch.tensor([self.tok(PROMPT)["input_ids"]])
        with torch.no_grad(), quiet():
            want = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=1, eos_token_id=1)[0, ids.shape[1]:].tolist()
        got = self.ours.json("generate", self.base, "--prompt", PROMPT, "--max-tokens", "20")["ids"]
        cut = want[: want.index(1)] if 1 in want else want
        assert got in (want, cut) or got[: len(want)] == want, f"{got}, transformers {want}"

    def ppl(self):
        import torch

        file = self.work / "ids.json"
        flat = self.tok(TEXT, add_special_tokens=False)["input_ids"]
        n = len(flat) // 32
        windows = torch.tensor(flat[: 32 * n]).view(n, 32)
        file.write_text(json.dumps(windows.tolist()))
        got = self.ours.json("ppl", self.base, "--data", file, "--seqlen", "32")
        ll = logits(self.model, windows)[:, :-1].double().log_softmax(-1).gather(-1, windows[:, 1:, None])
        want = float(-ll.mean())
        assert got["windows"] == n, f"{got['windows']} windows, not {n}"
        d = abs(got["nll"] - want) / want
        assert d < TOLERANCE, f"{got['nll']}, transformers {want}"
        return d

    # what compress wrote, read by transformers

    def prune(self):
        out = self.dir("pruned")
        self.ours("prune", self.base, "--method", "wanda", "--pattern", "2:4", "--calib", self.text, "--samples", 4, "--seqlen", 32, out=out)
        zero = sum(int((p == 0).sum()) for n, p in theirs(out).named_parameters() if p.dim() > 1)
        assert zero > 0, "no zeros"
        return self.agree(out)

    def pack(self):
        packed, dense = self.dir("packed"), self.dir("dense")
        self.ours("convert", self.dir("pruned"), "--save", "bitmask", out=packed)
        self.ours("convert", packed, "--save", "dense", out=dense)
        opened(packed)
        return max(self.agree(dense), near(self.ours.logits(packed, self.ids), self.ours.logits(self.dir("pruned"), self.ids)))

    def convert(self):
        sharded, half = self.dir("sharded"), self.dir("half")
        self.ours("convert", self.base, "--max-shard-size", "40KB", out=sharded)
        assert len(list(sharded.glob("*.safetensors"))) > 1, "one shard only"
        self.ours("convert", self.base, "--dtype", "bf16", out=half)
        return max(self.agree(sharded, self.want), self.agree(half))

    def merge(self):
        import torch, yaml

        out, file = self.dir("merged"), self.work / "linear.yaml"
        file.write_text(yaml.safe_dump({"merge_method": "linear", "dtype": "float32", "models": [{"model": str(p), "parameters": {"weight": w}} for p, w in ((self.base, 1.0), (self.tuned, 3.0))]}))
        self.ours("merge", file, out=out)
        mean = type(self.model)(self.model.config).eval()
        a, b = self.model.state_dict(), self.tuned_model.state_dict()
        mean.load_state_dict({k: (a[k].double() * 0.25 + b[k].double() * 0.75).to(a[k].dtype) if a[k].is_floating_point() else a[k] for k in a})
        return self.agree(out, logits(mean, self.ids))

    def edit(self):
        out, edits, hp = self.dir("edited"), self.work / "edits.json", self.work / "hparams.yaml"
        edits.write_text(json.dumps([{"case_id": 0, "requested_rewrite": {"prompt": "the birthplace of {} is", "relation_id": "p", "subject": "leon pryce", "target_true": {"str": "oslo"}, "target_new": {"str": "leeds"}},
                                      "paraphrase_prompts": ["leon pryce was born in"], "neighborhood_prompts": ["the birthplace of mira yates is"], "generation_prompts": ["leon pryce"]}]))
        hp.write_text("steps: 3\nlayers: [0]\n")  # what the last layer writes at the subject reaches no other token
        command = ["edit", self.base, "--edits", edits, "--method", "rome", "--hparams", hp, "--stats", self.text, "--texts", 0]
        if self.mixture() and not self.dense_first():
            said = self.ours.says(*command, "--out", out)
            assert "choose layers without a mixture" in said, f"compress edit is silent: {said[-200:]}"
            raise Skip("compress: its editors write no facts into mixtures of experts, and say so")
        self.ours(*command, out=out)
        moved = float((logits(theirs(out), self.ids) - self.want).abs().max())
        assert moved > 0, "nothing moved"
        return self.agree(out)

    def safetensors(self):
        return sum(opened(d) for d in map(self.dir, ("pruned", "packed", "dense", "sharded", "half", "merged", "edited", "folded")) if d.exists())

    # adapters

    def targets(self):
        """The names of the linears of the blocks, as PEFT wants them."""
        import torch
        from transformers.pytorch_utils import Conv1D

        found = {n.rsplit(".", 1)[-1] for n, m in self.model.named_modules() if isinstance(m, (torch.nn.Linear, Conv1D))}
        return sorted(found - {"lm_head", "embed_out", "shared_expert_gate"} - (MLP if self.by_name() else set()))

    def by_name(self):
        """Reports whether PEFT takes gate_proj, up_proj and down_proj for names of experts alone: it passes over the matrices of dense layers and shared experts that have them."""
        return self.model.config.model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite")

    def peft_model(self, **how):
        import copy, torch
        from peft import LoraConfig, get_peft_model

        with quiet():
            torch.manual_seed(3)
            p = get_peft_model(copy.deepcopy(self.model), LoraConfig(r=4, lora_alpha=6, target_modules=self.targets(), fan_in_fan_out=self.model.config.model_type == "gpt2", **how)).eval()
        with torch.no_grad():
            for n, x in sorted(p.named_parameters()):
                if "lora_B" in n or "lora_embedding_B" in n:
                    x.normal_(0, 0.1)
                elif "magnitude" in n:
                    x.mul_(1 + 0.1 * torch.rand(x.shape))
                elif "trainable_tokens_delta" in n or "modules_to_save" in n:
                    x.add_(0.05 * torch.randn(x.shape))
        return p

    def peft_reads(self, name, **how):
        out = self.dir("peft-" + name)
        p = self.peft_model(**how)
        with quiet():
            p.save_pretrained(out)
        want = logits(p, self.ids)
        assert float((want - self.want).abs().max()) > 1e-3, "the adapter changes nothing"
        return near(self.ours.logits(self.base, self.ids, "--adapter", out), want)

    def lora(self):
        return self.peft_reads("lora")

    def rslora(self):
        return self.peft_reads("rslora", use_rslora=True)

    def dora(self):
        return self.peft_reads("dora", use_dora=True)

    def patterns(self):
        t = self.targets()
        return self.peft_reads("patterns", rank_pattern={t[0]: 2}, alpha_pattern={t[-1]: 3}, layers_to_transform=[1])

    def tokens(self):
        e = next(n for n, m in self.model.named_modules() if m is self.model.get_input_embeddings()).rsplit(".", 1)[-1]
        return self.peft_reads("tokens", trainable_token_indices={e: [2, 5]})

    def fold(self):
        out, adapter = self.dir("folded"), self.dir("peft-dora")
        self.ours("lora", "fold", self.base, "--adapter", adapter, out=out)
        with quiet():
            from peft import PeftModel

            want = logits(PeftModel.from_pretrained(theirs(self.base), adapter).eval(), self.ids)
        return self.agree(out, want)

    def peft_opens(self, adapter, base=None):
        """An adapter that compress wrote: PEFT loads it whole, and the logits are ours."""
        from peft import PeftModel

        base = base or self.base
        model = theirs(base)
        with quiet() as text:
            p = PeftModel.from_pretrained(model, adapter).eval()
        said = [l for l in text.getvalue().splitlines() if "missing" in l.lower() or "unexpected" in l.lower()]
        assert not said, f"PEFT: {said[0][:200]}"
        got = logits(p, self.ids)
        assert float((got - self.want).abs().max()) > 1e-5, "the adapter changes nothing"
        opened(adapter)
        return near(self.ours.logits(base, self.ids, "--adapter", adapter), got)

    def left_out(self):
        """Targets without those whose factors PEFT passes over, and what these are in words. Nothing for models of which it loads all."""
        import torch

        kind = self.model.config.model_type
        if not self.mixture() or kind in ("mixtral", "olmoe", "qwen3_moe"):
            return (), ""
        linears = {".".join(n.rsplit(".", 2)[-2:]) for n, m in self.model.named_modules() if isinstance(m, torch.nn.Linear) and ".layers." in n}
        if not self.by_name():
            return ("--targets", ",".join(sorted(linears - {"mlp.shared_expert_gate"}))), f"experts of a {kind}"
        attention = {n for n in linears if n.rpartition(".")[2] not in MLP}
        experts = {f"experts.{e}.{n}" for e in range(self.model.config.n_routed_experts) for n in MLP}
        return ("--targets", ",".join(sorted(attention | experts))), f"dense layers and shared experts of a {kind}"

    def without_them(self, d, program, *args):
        """What agrees where PEFT reads all that there is; of a model whose factors it passes over, that compress says so."""
        _, what = self.left_out()
        if not what:
            return d
        said = self.ours.says(*args)
        assert "PEFT" in said and what in said, f"compress {program} is silent: {said[-200:]}"
        raise Skip(f"PEFT {importlib.metadata.version('peft')} passes over factors for the {what} without a word: compress says so, and without these factors both agree (to {TOLERANCE:g})")

    def train(self):
        out = self.dir("trained")
        how = ["--kind", "lora", *(() if self.mixture() else ("--dora",)), "--rank", 2, "--steps", 3, "--seqlen", 16, "--batch", 1, "--lr", "0.01", "--data", self.text]  # PEFT has no DoRA of experts
        self.ours("lora", "train", self.base, *how, *self.left_out()[0], out=out)
        return self.without_them(self.peft_opens(out), "lora train", "lora", "train", self.base, *how, "--out", self.dir("trained-whole"), "--overwrite")

    def export(self):
        mos, out = self.dir("mos"), self.dir("exported")
        self.ours("lora", "train", self.base, "--kind", "mos", "--private", -1, "--shards", 2, "--equivalent-rank", 2, "--rank", 2, "--steps", 3, "--seqlen", 16, "--batch", 1, "--lr", "0.05", "--data", self.text, *self.left_out()[0], out=mos)
        self.ours("lora", "export", mos, "--model", self.base, out=out)
        d = max(self.peft_opens(out), near(self.ours.logits(self.base, self.ids, "--adapter", mos), self.ours.logits(self.base, self.ids, "--adapter", out)))
        return self.without_them(d, "lora export", "lora", "export", self.dir("trained-whole"), "--model", self.base, "--out", self.dir("exported-whole"), "--overwrite")

    def extract(self):
        out = self.dir("extracted")
        self.ours("lora", "extract", self.base, self.tuned, "--rank", 4, *self.left_out()[0], out=out)
        return self.without_them(self.peft_opens(out), "lora extract", "lora", "extract", self.base, self.tuned, "--rank", 4, "--out", self.dir("extracted-whole"), "--overwrite")

    def split(self):
        """Matrices as sums of a sparse part, the model, and a low-rank part, the adapter."""
        out, adapter = self.dir("sparse"), self.dir("low-rank")
        shutil.rmtree(adapter, ignore_errors=True)
        how = ["--method", "oats", "--sparsity", 0.4, "--rank-share", 0.4, "--rank-turns", 3, "--calib", self.text, "--samples", 4, "--seqlen", 32]
        if self.left_out()[0]:
            return self.without_them(0, "prune", "prune", self.base, *how, "--adapter", adapter, "--out", out, "--overwrite")
        self.ours("prune", self.base, *how, "--adapter", adapter, out=out)
        assert len(opened_names(adapter)) > 2, "no factors"
        return self.peft_opens(adapter, out)

    def combine(self):
        out = self.dir("combined")
        self.ours("lora", "combine", self.dir("peft-lora"), self.dir("peft-rslora"), "--method", "cat", "--weights", "0.5,1", "--model", self.base, out=out)
        return self.peft_opens(out)


HERE = ["inspect", "forward", "forward_sharded", "forward_bf16", "tokenize", "generate", "ppl", "prune", "pack", "convert", "merge", "edit", "lora", "rslora", "dora", "patterns", "tokens", "fold", "train", "export", "extract", "combine", "split", "safetensors"]
MERGEKIT = ["mk_same", "mk_reads", "mk_read"]
LMEVAL = ["harness", "table"]
TITLES = {
    "inspect": "inspect --verify", "forward": "forward", "forward_sharded": "shards", "forward_bf16": "BF16", "tokenize": "tokens", "generate": "greedy text", "ppl": "perplexity",
    "prune": "pruned 2:4", "pack": "packed, unpacked", "convert": "sharded, BF16", "merge": "merged", "edit": "edited", "fold": "adapter folded in", "safetensors": "tensors read",
    "lora": "LoRA", "rslora": "rsLoRA", "dora": "DoRA", "patterns": "patterns, layers", "tokens": "token rows", "train": "trained (DoRA, experts LoRA)", "export": "MoS exported", "extract": "extracted", "combine": "combined", "split": "sparse + low rank",
    "mk_same": "same recipe", "mk_reads": "reads ours", "mk_read": "ours reads its", "harness": "same scores", "table": "its table of ours",
}
TABLES = [
    ("transformers and safetensors wrote it, compress reads it: largest difference of logits, as a share of the largest", ["inspect", "forward", "forward_sharded", "forward_bf16", "tokenize", "generate", "ppl"]),
    ("compress wrote it, transformers and safetensors read it without a missing, unexpected or mismatched tensor: the same", ["prune", "pack", "convert", "merge", "edit", "fold", "safetensors"]),
    ("PEFT wrote the adapter, compress reads it (five kinds); compress wrote it, PEFT reads it (five): the same", ["lora", "rslora", "dora", "patterns", "tokens", "train", "export", "extract", "combine", "split"]),
    ("mergekit (largest difference of a tensor, as a share of its largest value, and of logits) and lm-eval (largest difference of a log-likelihood)", MERGEKIT + LMEVAL),
]


def attempt(results, name, check, f):
    """Notes what a check gives: nothing, a number, a reason to leave it out, or what is wrong."""
    try:
        value = f()
        r = {"ok": True, "value": value}
    except Skip as e:
        r = {"ok": None, "note": str(e)}
    except AssertionError as e:
        r = {"ok": False, "note": str(e)}
    except Exception as e:  # a peer that fails is a finding too
        r = {"ok": False, "note": f"{type(e).__name__}: {str(e).strip().splitlines()[0][:300] if str(e).strip() else ''}", "trace": traceback.format_exc()}
    results.setdefault(name, {})[check] = r
    if r["ok"] is not True:
        print(f"{name}: {check}: {'left out' if r['ok'] is None else 'WRONG'}: {r['note']}", file=sys.stderr, flush=True)
    return r


# ---------------------------------------------------------------- peers in environments of their own


def peer(python, what, job):
    """Runs this file under another Python, with a job as JSON on its standard input; the answer is the last line."""
    r = subprocess.run([python, __file__, "--peer", what], input=json.dumps(job), capture_output=True, text=True, timeout=7200)
    if r.returncode:
        raise RuntimeError(f"{what}: {r.stderr.strip().splitlines()[-1][:300] if r.stderr.strip() else r.returncode}")
    return json.loads(r.stdout.splitlines()[-1])


def peer_mergekit(job):
    """Merges recipes with mergekit."""
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    done = {"version": importlib.metadata.version("mergekit"), "said": {}}
    for recipe, out in job["merges"]:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                run_merge(MergeConfiguration.model_validate(recipe), out, MergeOptions(cuda=False, copy_tokenizer=True, lazy_unpickle=False))
        except Exception as e:
            done["said"][out] = f"{type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e).strip() else ''}"
    return done


def peer_lmeval(job):
    """Scores models with lm-eval, and makes its table of compress' results."""
    import lm_eval, torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    done = {"version": importlib.metadata.version("lm_eval"), "runs": {}}
    tasks = TaskManager(include_path=job["tasks"], include_defaults=False)
    with contextlib.redirect_stdout(sys.stderr):
        for model, ours in job["models"]:
            try:
                hf = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=1)
                r = lm_eval.simple_evaluate(hf, tasks=[job["task"]], task_manager=tasks, limit=job["limit"], bootstrap_iters=0)
                lls = [[x[0][0] if isinstance(x[0], (list, tuple)) else x[0] for x in s["resps"]] for s in r["samples"][job["task"]]]
                run = {"acc": r["results"][job["task"]]["acc,none"], "lls": lls}
            except Exception as e:
                run = {"failed": f"{type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e).strip() else ''}"}
            try:
                run["table"] = make_table(json.loads(pathlib.Path(ours, "results.json").read_text()))
            except Exception as e:
                run["no_table"] = f"{type(e).__name__}: {e}"
            done["runs"][model] = run
    return done


def apart(tensors):
    """Gives experts that lie in one tensor (gate_up_proj, down_proj) tensors of their own, and the routers of Mixtral and Granite their names beside those."""
    mixtral = any(".block_sparse_moe.experts." in k for k in tensors)
    granite = {"input_linear.weight": "experts.gate_up_proj", "output_linear.weight": "experts.down_proj", "router.layer.weight": "router.weight"}
    done = {}
    for k, v in tensors.items():
        head, dot, tail = k.rpartition(".block_sparse_moe.")
        k = head + dot + granite.get(tail, tail)
        where, dot, what = k.rpartition(".mlp.experts.")
        if not dot or what not in ("gate_up_proj", "down_proj"):
            done[k.replace(".block_sparse_moe.gate.", ".mlp.gate.")] = v
            continue
        for e in range(v.shape[0]):
            parts = zip(("gate_proj", "up_proj"), v[e].chunk(2)) if what == "gate_up_proj" else [("down_proj", v[e])]
            done.update({f"{where}.mlp.experts.{e}.{n}.weight": x for n, x in parts})
    if mixtral:
        names = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
        done = {re.sub(r"block_sparse_moe\.experts\.(\d+)\.(w\d)", lambda m: f"mlp.experts.{m[1]}.{names[m[2]]}", k): v for k, v in done.items()}
    return done


def mergekit(args, ours, all, results):
    """Both sides merge the same, and what the other merged."""
    import yaml
    from safetensors.torch import load_file

    def recipe(a, b, base, mixture):
        if mixture:  # mergekit counts a density over all experts of a block, which it keeps in one tensor; compress over each matrix
            return {"merge_method": "task_arithmetic", "base_model": str(base), "dtype": "float32", "models": [{"model": str(a), "parameters": {"weight": 0.7}}, {"model": str(b), "parameters": {"weight": 0.5}}]}
        models = [{"model": str(a), "parameters": {"weight": 0.7, "density": 0.6}}, {"model": str(b), "parameters": {"weight": 0.5, "density": 0.5}}]
        return {"merge_method": "ties", "base_model": str(base), "dtype": "float32", "models": models, "parameters": {"normalize": True}}

    def linear(a, b):
        return {"merge_method": "linear", "dtype": "float32", "models": [{"model": str(a), "parameters": {"weight": 1.0}}, {"model": str(b), "parameters": {"weight": 1.0}}]}

    plans = {c.name: [(recipe(c.tuned, c.dir("merged"), c.base, c.mixture()), str(c.dir("mk-same"))), (linear(c.dir("merged"), c.base), str(c.dir("mk-reads")))] for c in all}
    try:
        done = peer(args.mergekit, "mergekit", {"merges": [m for p in plans.values() for m in p]})
    except Exception as e:
        for c in all:
            for check in MERGEKIT:
                attempt(results, c.name, check, lambda e=e: (_ for _ in ()).throw(e))
        return None

    def tensors(folder):
        return apart({k: v for f in sorted(pathlib.Path(folder).glob("*.safetensors")) for k, v in load_file(f).items()})

    def left_out(their):
        """Ends a check where mergekit has left out tensors of a model, so that transformers cannot open it either."""
        try:
            theirs(their)
        except AssertionError as e:
            if "missing_keys" in str(e):
                raise Skip("mergekit: the experts are not in what it writes, " + re.sub(r"layers\.\d+", "layers.N", str(e)))

    def same(c, recipe, their, name):
        if their in done["said"]:
            raise Skip("mergekit: " + done["said"][their])
        file, out = c.work / f"{name}.yaml", c.dir(name)
        file.write_text(yaml.safe_dump(recipe))
        ours("merge", file, out=out)
        a, b = tensors(out), tensors(their)
        missing = {k for k in set(a) ^ set(b) if not k.endswith(("lm_head.weight", "embed_out.weight"))}
        if set(b) < set(a):
            left_out(their)
        assert not missing, f"only one side has {sorted(missing)[:2]}"
        return max([near(a[k].float(), b[k].float(), 1e-5) for k in a if k in b] + [c.agree(out)])

    for c in all:
        (r1, o1), (r2, o2) = plans[c.name]
        attempt(results, c.name, "mk_same", lambda: same(c, r1, o1, "our-same"))
        attempt(results, c.name, "mk_reads", lambda: same(c, r2, o2, "our-reads"))

        def read(c=c, o1=o1):
            if o1 in done["said"]:
                raise Skip("mergekit: " + done["said"][o1])
            left_out(o1)
            file, out = c.work / "our-read.yaml", c.dir("our-read")
            file.write_text(yaml.safe_dump(linear(o1, c.base)))
            ours("merge", file, out=out)
            d = max(c.agree(out), near(ours.logits(o1, c.ids), logits(theirs(o1), c.ids)))
            if c.mixture():  # whose experts mergekit writes into one tensor: what is pruned or folded of these stays readable as well
                pruned, folded = c.dir("mk-pruned"), c.dir("mk-folded")
                ours("prune", o1, "--method", "wanda", "--pattern", "2:4", "--calib", c.text, "--samples", 4, "--seqlen", 32, out=pruned)
                ours("lora", "fold", o1, "--adapter", c.dir("trained"), "--allow-other-base", out=folded)
                assert set(opened_names(pruned)) == set(opened_names(o1)) == set(opened_names(folded)), "other tensors than mergekit's"
                d = max(d, c.agree(pruned), c.agree(folded))
            return d

        attempt(results, c.name, "mk_read", read)
    return done["version"]


def harness(args, ours, all, results):
    """lm-eval and compress score the models that compress merged."""
    folder = args.work / "tasks"
    folder.mkdir(exist_ok=True)
    words = ["leeds", "oslo", "seville", "the oboe", "20"]
    docs = [{"question": f"the {what} of {who} is", "choices": words, "label": i % 5} for i, (what, who) in enumerate((w, p) for w in ("birthplace", "employer", "mayor") for p in ("leon pryce", "mira yates", "wanda brandt", "leeds"))]
    (folder / "facts.jsonl").write_text("".join(json.dumps(d) + "\n" for d in docs))
    (folder / "facts.yaml").write_text(f"""task: facts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / 'facts.jsonl'}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
""")
    scored, job = {}, []
    for c in all:
        out = c.dir("eval")

        def run(c=c, out=out):
            ours("eval", c.dir("merged"), "--tasks", folder / "facts.yaml", out=out)
            return json.loads((out / "results.json").read_text())

        try:
            scored[c.name] = run()
        except AssertionError as e:
            scored[c.name] = e
        job.append((str(c.dir("merged")), str(out)))
    try:
        done = peer(args.lmeval, "lmeval", {"tasks": str(folder), "task": "facts", "limit": None, "models": job})
    except Exception as e:
        for c in all:
            for check in LMEVAL:
                attempt(results, c.name, check, lambda e=e: (_ for _ in ()).throw(e))
        return None
    for c in all:
        run, mine = done["runs"][str(c.dir("merged"))], scored[c.name]

        def compare():
            if isinstance(mine, AssertionError):
                raise mine
            assert "failed" not in run, "lm-eval: " + run.get("failed", "")
            lines = [json.loads(l) for l in (c.dir("eval") / "samples_facts.jsonl").read_text().splitlines()]
            worst = 0.0
            for a, b in zip(sorted(lines, key=lambda l: l["doc_id"]), run["lls"], strict=True):
                worst = max([worst] + [abs(float(x[0][0]) - float(y)) for x, y in zip(a["resps"], b, strict=True)])
            assert worst < 1e-3, f"log-likelihoods apart by {worst:.2g}"
            acc = mine["results"]["facts"]["acc,none"]
            assert acc == run["acc"], f"acc {acc}, lm-eval {run['acc']}"
            return worst

        def shown():
            assert "table" in run, run.get("no_table")
            assert "facts" in run["table"] and "acc_norm" in run["table"], "the table lacks the task"

        attempt(results, c.name, "harness", compare)
        attempt(results, c.name, "table", shown)
    return done["version"]


# ---------------------------------------------------------------- the table


def cell(r, notes):
    if r is None:
        return "not tried"
    if r["ok"]:
        v = r.get("value")
        return "yes" if v is None else str(v) if isinstance(v, int) else "0" if v == 0 else f"{v:.0e}"
    if r["note"] not in notes:
        notes.append(r["note"])
    return ("– " if r["ok"] is None else "**no** ") + f"[{notes.index(r['note']) + 1}]"


def markdown(versions, results):
    notes, text = [], ["# Interop check", "", "**What compress writes, transformers, PEFT, mergekit and lm-eval read as the same model, and the other way round.**", "", "Made by `compare/interop.sh`. " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".", ""]
    rows = [r for checks in results.values() for r in checks.values()]
    count = collections.Counter(r["ok"] for r in rows)
    text += [f"{len(results)} models, {len(rows)} checks: {count[True]} agree, {count[False]} do not, {count[None]} one side does not offer.", "",
             f"- A number is the largest relative difference; up to {TOLERANCE:g} counts as equal (float32 on both sides; the tolerances of text, tokens and tensor names are none).",
             "- **no** is a finding, – what one side does not offer.",
             "- Models named oracle come from the oracle folder; the others are drawn by the script, so that it runs from a clone alone.",
             "- Mixtures are merged by task arithmetic beside mergekit, the others by TIES, whose density mergekit counts over all experts of a block and compress over each matrix.",
             "- mergekit writes the experts of a block into one tensor, and what compress prunes or folds of that is compared with transformers too.",
             "- PEFT's own adapters for DeepSeek and GLM's mixtures are of the attention alone: by the names of the other matrices it means experts in one tensor, and compress refuses such an adapter (target_parameters).", ""]
    for title, checks in TABLES:
        text += [f"## {title[0].upper()}{title[1:]}", "", "| model | " + " | ".join(TITLES[c] for c in checks) + " |", "|---" * (len(checks) + 1) + "|"]
        text += ["| " + " | ".join([name, *(cell(done.get(c), notes) for c in checks)]) + " |" for name, done in results.items()]
        text.append("")
    if notes:
        text += ["## Notes", ""] + [f"{i + 1}. {n}" for i, n in enumerate(notes)] + [""]
    return "\n".join(text)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--compress"), p.add_argument("--oracle"), p.add_argument("--work", type=pathlib.Path), p.add_argument("--mergekit"), p.add_argument("--lmeval")
    p.add_argument("--only", default="", help="models whose name this expression fits"), p.add_argument("--checks", default="", help="some checks only, with commas between"), p.add_argument("--markdown"), p.add_argument("--json"), p.add_argument("--peer")
    args = p.parse_args()
    if args.peer:
        print("\n" + json.dumps({"mergekit": peer_mergekit, "lmeval": peer_lmeval}[args.peer](json.load(sys.stdin))))
        return 0
    import peft, safetensors, tokenizers, torch, transformers

    torch.set_num_threads(2)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work = args.work.resolve()
    results, all = {}, []
    if args.only and args.json and os.path.exists(args.json):  # the other models' rows stay
        results = json.loads(pathlib.Path(args.json).read_text())["results"]
    ours = Ours(os.path.abspath(args.compress), args.work)
    for name, make in cases(args.oracle):
        if not re.search(args.only, name):
            continue
        work = args.work / name.replace(" ", "-")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        with quiet():
            model = make()
        c = Case(name, model, ours, work)
        for check in args.checks.split(",") if args.checks else HERE:
            attempt(results, name, check, getattr(c, check))
        all.append(c)
        print(f"{name}: {sum(r['ok'] is True for r in results[name].values())} of {len(results[name])}", file=sys.stderr, flush=True)
    version = json.loads(subprocess.run([ours.program, "version", "--json"], capture_output=True, text=True).stdout)["version"]
    versions = {"compress": version, "Python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__,
                "safetensors": safetensors.__version__, "tokenizers": tokenizers.__version__}
    if args.mergekit:
        versions["mergekit"] = mergekit(args, ours, all, results)
    if args.lmeval:
        versions["lm-eval"] = harness(args, ours, all, results)
    for r in (r for checks in results.values() for r in checks.values() if "note" in r):
        r["note"] = r["note"].replace(f"{args.work}/", "")
    text = markdown(versions, results)
    print(text)
    if args.markdown:
        pathlib.Path(args.markdown).write_text(text)
    if args.json:
        for checks in results.values():
            for r in checks.values():
                r.pop("trace", None) if r["ok"] else None
        pathlib.Path(args.json).write_text(json.dumps({"versions": versions, "tolerance": TOLERANCE, "results": results}, indent=1) + "\n")
    return int(any(r["ok"] is False for checks in results.values() for r in checks.values()))


if __name__ == "__main__":
    sys.exit(main())
