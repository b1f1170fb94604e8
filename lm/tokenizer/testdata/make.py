"""Makes the tokenizers and golden files of this folder.

    pip install tokenizers==0.23.2 sentencepiece==0.2.1 protobuf
    python make.py TEXT        # TEXT: texts of the nano models (calib.txt), made for this project

Every *.json is a tokenizer trained here; golden/<name>.json holds what Hugging Face tokenizers gives for the strings of
golden/inputs.json: ids without and with the template (null: the same), spans in bytes (null: not recorded), decoded
text (null: the input), the same without special tokens (null: no difference), pairs.
"""

import glob
import io
import json
import os
import random
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders as D, models as M, normalizers as N
from tokenizers import pre_tokenizers as P, processors as PP, trainers as T

HERE = os.path.dirname(os.path.abspath(__file__))
FULL = open(sys.argv[1], encoding="utf-8").read()
TEXT = FULL[:60000]
LINES = [line for line in TEXT.split("\n") if line.strip()]
EXTRA = ["Grüße aus Köln", "naïve café", "日本語と中文", "привет мир", "x = [1, 23, 456];", "we're they'll I'M"]
BYTES = ["<0x%02X>" % i for i in range(256)]


def save(name, tok, added=True, change=None):
    """Adds tokens of every kind and writes the file; change edits it first."""
    if added:
        tok.add_special_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("<mask>", lstrip=True, rstrip=True)])
        tok.add_tokens([
            AddedToken("Ann", single_word=True), AddedToken("é", normalized=True), AddedToken("[X]", normalized=False),
            AddedToken("[XY]", normalized=True, rstrip=True), AddedToken("  ", normalized=False),
            AddedToken("Big Cat", normalized=True, lstrip=True),
        ])
    spec = json.loads(tok.to_str())
    if change:
        change(spec)
    Tokenizer.from_str(json.dumps(spec))
    with open(f"{HERE}/{name}.json", "w", encoding="utf-8") as f:
        json.dump(spec, f, ensure_ascii=False, separators=(",", ":"))


def byte_level(name, pre, norm=None, post=None, added=True, change=None, size=320):
    tok = Tokenizer(M.BPE())
    tok.pre_tokenizer, tok.decoder = pre, D.ByteLevel()
    if norm:
        tok.normalizer = norm
    if post:
        tok.post_processor = post
    tok.train_from_iterator(LINES + EXTRA, T.BpeTrainer(
        vocab_size=size, initial_alphabet=P.ByteLevel.alphabet(), show_progress=False, special_tokens=["<unk>"]))
    save(name, tok, added, change)


def patterns(*regexes):
    steps = [P.Split(Regex(r), "isolated") for r in regexes]
    return P.Sequence(steps + [P.ByteLevel(add_prefix_space=False, use_regex=False)])


UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{END}|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{END}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
              r"|\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

byte_level("gpt2", P.ByteLevel(add_prefix_space=False), post=PP.ByteLevel(trim_offsets=True))
byte_level("roberta", P.ByteLevel(add_prefix_space=True), post=PP.RobertaProcessing(("</s>", 321), ("<s>", 320)))


def llama3(spec):
    spec["model"]["ignore_merges"] = True
    spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]


byte_level("llama3", patterns(LLAMA3), change=llama3, post=PP.Sequence([
    PP.ByteLevel(trim_offsets=False),
    PP.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 320)])]))
byte_level("o200k", patterns(O200K), norm=N.NFC())
byte_level("possessive", patterns(POSSESSIVE), added=False)
byte_level("deepseek", patterns(*DEEPSEEK), added=False)
byte_level("falcon", P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(False),
                                 P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
byte_level("normal", P.Sequence([P.Digits(True), P.ByteLevel(add_prefix_space=False)]),
           norm=N.Sequence([N.NFKC(), N.Lowercase(), N.StripAccents(), N.Strip()]))
for behavior in ["removed", "merged_with_previous", "merged_with_next", "contiguous"]:
    byte_level("split_" + behavior, P.Sequence([
        P.Split(Regex(r"[aeiou ]|\d\d?"), behavior, behavior == "contiguous"), P.Split(" ", behavior),
        P.ByteLevel(add_prefix_space=False, use_regex=False)]), added=False, size=270)


def sentencepiece_bpe(name, change):
    tok = Tokenizer(M.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.pre_tokenizer, tok.decoder = P.Metaspace(), D.Metaspace()
    tok.train_from_iterator(LINES, T.BpeTrainer(
        vocab_size=500, show_progress=False, special_tokens=["<unk>"] + BYTES, limit_alphabet=60))
    save(name, tok, change=change)


def llama2(spec):
    spec["pre_tokenizer"] = None
    spec["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]


def first(spec):
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    spec["model"]["byte_fallback"] = False
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]


sentencepiece_bpe("llama2", llama2)
sentencepiece_bpe("first", first)

tok = Tokenizer(M.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
tok.pre_tokenizer, tok.decoder, tok.normalizer = P.BertPreTokenizer(), D.BPEDecoder("</w>"), N.Lowercase()
tok.train_from_iterator(LINES, T.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"],
                                            end_of_word_suffix="</w>", limit_alphabet=40))
save("suffix", tok)
tok = Tokenizer(M.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
tok.pre_tokenizer, tok.decoder, tok.normalizer = P.Whitespace(), D.WordPiece("##"), N.NFD()
tok.train_from_iterator(LINES, T.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"],
                                            continuing_subword_prefix="##", limit_alphabet=40))
save("prefix", tok)


def unigram(name, norm, pre, dec, specials, change=None, post=None):
    tok = Tokenizer(M.Unigram())
    if norm:
        tok.normalizer = norm
    tok.pre_tokenizer, tok.decoder = pre, dec
    tok.train_from_iterator(LINES, T.UnigramTrainer(vocab_size=200 + len(specials), show_progress=False,
                                                    unk_token="<unk>", special_tokens=["<unk>"] + specials))
    if post:
        tok.post_processor = post(tok)
    save(name, tok, change=change)


def fallback(spec):
    spec["model"]["byte_fallback"] = True
    spec["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spec["decoder"]]}
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]


unigram("unigram", N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(), D.Metaspace(), [])
unigram("fallback", None, P.Metaspace(), D.Metaspace(), BYTES, fallback)
unigram("nosplit", N.Sequence([N.Strip(), N.Replace(Regex(r"\s+"), "▁")]),
        P.Metaspace(split=False, prepend_scheme="first"), D.Metaspace(prepend_scheme="first"), [])

# A character map of our own, compiled by SentencePiece.
rules = {"\uff21": "A", "e\u0301": "é", "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u200b": "", "ﬁ": "fi",
         "A\u0308": "Ä", "①": "1", "…": "...", "\u0001": "", "ａ": "a", "½": "1/2"}
with tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False, encoding="utf-8") as f:
    for k, v in rules.items():
        f.write(" ".join("%X" % ord(c) for c in k) + "\t" + " ".join("%X" % ord(c) for c in v) + "\n")
model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, vocab_size=300,
                                         normalization_rule_tsv=f.name, minloglevel=2)
proto = sentencepiece_model_pb2.ModelProto()
proto.ParseFromString(model.getvalue())
tok = Tokenizer(M.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0))
tok.normalizer = N.Sequence([N.Precompiled(proto.normalizer_spec.precompiled_charsmap), N.Strip(left=False),
                             N.Replace(Regex(" {2,}"), "▁")])
tok.pre_tokenizer, tok.decoder = P.Metaspace(prepend_scheme="first"), D.Metaspace()
tok.post_processor = PP.TemplateProcessing("$A </s>", "$A </s> $B:1 </s>:1", [("</s>", 2)])
save("charsmap", tok)

for name, lower in [("uncased", True), ("cased", False)]:
    tok = Tokenizer(M.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tok.normalizer, tok.pre_tokenizer, tok.decoder = N.BertNormalizer(lowercase=lower), P.BertPreTokenizer(), D.WordPiece()
    tok.train_from_iterator(LINES + EXTRA, T.WordPieceTrainer(
        vocab_size=340, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    if lower:
        tok.post_processor = PP.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    else:
        tok.post_processor = PP.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1",
                                                   [("[CLS]", 2), ("[SEP]", 3)])
    save(name, tok)

tok = Tokenizer(M.WordLevel(unk_token="<unk>"))
tok.pre_tokenizer, tok.normalizer = P.Whitespace(), N.Lowercase()
tok.decoder = D.CTC(pad_token="<pad>", word_delimiter_token="|")
tok.train_from_iterator(LINES, T.WordLevelTrainer(vocab_size=200, show_progress=False, special_tokens=["<unk>"]))
save("words", tok)

# ---- golden files ----

FRAGMENTS = ["", " ", "\n", "a", "  ", "   ", " the", "'s", "'LL", "'ſ", "▁", "▁▁", "<s>", "</s>", "<mask>", "Ann", "Anna",
             "é", "e\u0301", "Big Cat", "[X]", "[XY]", "[X", "\r\n", "\n\n", " \n ", "<0x41>", "Ġ", "123", "1234567",
             "don't", "I'M", "##ing", "</w>", "a" * 12, " " * 12, "\u0301" * 35, "a\u0300\u0316", "ﬁ", "①", "K", "İ", "ß",
             "Σας", "x=y;", "http://a.b/c?d=e", "👩\u200d👩\u200d👧", "ǅ", "Ⅷ", "²½", "٣", "각", "각", "한국어",
             "\u0600a", "ก\u0e33", "日本語", "中文", "A\u0308", "Ａ…", "\u200b", "\u00a0", "\t", "\u0001\u0000", "\ufeff",
             "\u2028", "word\u200cword", "😀😃", "🇩🇪🇫🇷", "naïve", "ÀÉ", "मानक हिन्दी", "עברית", "العربية"]
POOLS = [range(0x20, 0x7F), range(0x20, 0x250), range(0x300, 0x345), range(0x370, 0x600), range(0x900, 0xA00),
         range(0x1100, 0x1200), range(0x2000, 0x2070), range(0x3040, 0x3100), range(0x4E00, 0x4E40),
         range(0xFF00, 0xFF60), range(0x1F300, 0x1F600), range(9, 14)]
R = random.Random(7)


def random_text():
    out = []
    for _ in range(R.randint(2, 6)):
        if R.random() < 0.5:
            out.append(R.choice(FRAGMENTS))
        else:
            pool = R.choice(POOLS)
            out.append("".join(chr(R.choice(pool)) for _ in range(R.randint(1, 5))))
        if R.random() < 0.4:
            out.append(" " * R.randint(1, 3))
    return "".join(out)


INPUTS = FRAGMENTS + LINES[:3] + [random_text() for _ in range(8)]


def spans(enc, text):
    at = [0]
    for ch in text:
        at.append(at[-1] + len(ch.encode()))
    return [x for a, b in enc.offsets for x in (at[a], at[b])]


os.makedirs(f"{HERE}/golden", exist_ok=True)
with open(f"{HERE}/golden/inputs.json", "w", encoding="utf-8") as f:
    json.dump(INPUTS, f, ensure_ascii=False, separators=(",", ":"))
for path in sorted(glob.glob(f"{HERE}/*.json")):
    tok = Tokenizer.from_file(path)
    out = {"ids": [], "special": [], "spans": [], "decoded": [], "skipped": [], "pairs": []}
    for text in INPUTS:
        enc = tok.encode(text, add_special_tokens=False)
        out["ids"].append(enc.ids)
        special = tok.encode(text).ids
        decoded, skipped = tok.decode(enc.ids, skip_special_tokens=False), tok.decode(enc.ids)
        out["special"].append(None if special == enc.ids else special)
        out["spans"].append(spans(enc, text) if len(out["spans"]) % 4 == 0 and "split" not in path else None)
        out["decoded"].append(None if decoded == text else decoded)
        out["skipped"].append(None if skipped == decoded else skipped)
    for a in range(0, len(INPUTS) - 1, 20):
        enc = tok.encode(INPUTS[a], INPUTS[a + 1])
        out["pairs"].append({"a": a, "b": a + 1, "ids": enc.ids, "types": enc.type_ids})
    with open(f"{HERE}/golden/{os.path.basename(path)}", "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, separators=(",", ":"))
