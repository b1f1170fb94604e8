"""Writes tokenizers.jsonl: components of a tokenizer.json, texts, and what Hugging Face's tokenizers makes of these: pieces with their bytes in the text, or the text
that a normalizer gives.

    python3 tokenizers.py > tokenizers.jsonl        # made with tokenizers 0.23
"""
import json, pathlib, sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != HERE]  # this file has the library's name
from tokenizers import Tokenizer, models  # noqa: E402


def S(pattern, behavior, invert=False):
    return json.dumps({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})


WORDS = "Don't stop,  it's 12.5€!"
PIECES = [
 ('{"type":"Whitespace"}',[WORDS," a_b é1-中文 ","\u00a0a\u2003\n","","--a--","½ⅷ²_"]),
 ('{"type":"WhitespaceSplit"}',[WORDS,"\u00a0a\u2003b\n\n","   ","a\u200bb\u0085c"]),
 ('{"type":"BertPreTokenizer"}',[WORDS,"中文,ab。c","a$b^c`d|e~f","«é»—x"]),
 ('{"type":"Punctuation","behavior":"Removed"}',["a!?b.","¿qué?","a+b$c"]),
 ('{"type":"Punctuation","behavior":"MergedWithPrevious"}',["a!?b.","..a"]),
 ('{"type":"Punctuation","behavior":"MergedWithNext"}',["a!?b.","..a"]),
 ('{"type":"Punctuation","behavior":"Contiguous"}',["a!?b...","«é»—x"]),
 ('{"type":"Digits","individual_digits":true}',["a12b3","x½²٣１"]),
 ('{"type":"Digits","individual_digits":false}',["12a34","x½²٣１y","1"]),
 ('{"type":"CharDelimiterSplit","delimiter":"-"}',["a-b--c-","-","é-中"]),
 ('{"type":"UnicodeScripts"}',["abc かな漢字 def","Привет, мир hello","١٢ abc","  a  b","カー々〆","a1б2"]),
 ('{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}',["a b  c","▁a"," a","  ","a▁b c","é 中"]),
 ('{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}',["a b"," a","  "]),
 ('{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}',["a b  c"," a","é"]),
 ('{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}',[WORDS," a é","中文 😀","a\n\n b  c\t","'S'll 'LL'"]),
 ('{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}',["a é\n","\u0000\u007f\u00ad"]),
 ('{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}',["x  yz\n\n\nw","12ab_é","we'd've"]),
 (S({"String":"ab"},"Removed"),["xababy","ab","aab"]),
 (S({"String":"ab"},"Isolated"),["xababy","ab"]),
 (S({"String":"ab"},"MergedWithPrevious"),["xababy","abx"]),
 (S({"String":"ab"},"MergedWithNext"),["xababy","xab"]),
 (S({"String":"ab"},"Contiguous"),["xababyab"]),
 (S({"String":"."},"Removed",True),["a.b..","..."]),
 (S({"String":"ab"},"MergedWithPrevious",True),["xababy"]),
 (S({"Regex":"\\d{1,3}"},"Isolated"),["12345ab6","a1"]),
 (S({"Regex":"\\s+(?!\\S)|\\s+"},"Isolated"),["a   b  ","a \n b"]),
 (S({"Regex":"x*"},"Isolated"),["axxb","xx",""]),
 (S({"Regex":"\\p{L}+"},"Removed",True),["ab1éç 中_","12"]),
 (S({"Regex":"'s|'t|\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+"},"Isolated"),["it's  a 'test' #1!\n","é1２"]),
 ('{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Punctuation","behavior":"Isolated"},{"type":"Digits","individual_digits":true}]}',["a,b 12c!","  x"]),
 ('{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]}',["a 12 é3"]),
 ('{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}]}',["a bc","  a b"]),
]

NORMAL = [
 ('{"type":"Lowercase"}',["AÉİßẞ","ΟΔΟΣ ΣΑΣ","ǅ Ⅳ Ⓐ","ÀB ͅΑ"]),
 ('{"type":"StripAccents"}',["e\u0301a\u0327o","é","क\u094d\u0937","a\u20dd"]),
 ('{"type":"Strip","strip_left":true,"strip_right":true}',[" a b\u00a0","\t\n","\u200ba\u2028"]),
 ('{"type":"Strip","strip_left":true,"strip_right":false}',[" a "]),
 ('{"type":"Strip","strip_left":false,"strip_right":true}',[" a ","  "]),
 ('{"type":"Prepend","prepend":"▁"}',["a",""," "]),
 ('{"type":"Replace","pattern":{"String":" "},"content":"▁"}',["a b  c","","▁ "]),
 ('{"type":"Replace","pattern":{"String":"aa"},"content":"a"}',["aaaa","aaa","b"]),
 ('{"type":"Replace","pattern":{"Regex":"\\\\s+"},"content":" "}',["a \n\t b","\u3000x"]),
 ('{"type":"Replace","pattern":{"Regex":"b*"},"content":"-"}',["abbc","","bb"]),
 ('{"type":"Replace","pattern":{"Regex":"(\\\\d)(?=\\\\d{3})"},"content":"#"}',["12345","1"]),
 ('{"type":"NFC"}',["e\u0301","\u1100\u1161\u11a8","\u212b","a\u0323\u0307"]),
 ('{"type":"NFD"}',["é가","\u1e69"]),
 ('{"type":"NFKC"}',["ﬁ①½","ｶﾞ","㍿","\u0132"]),
 ('{"type":"NFKD"}',["ﬁé","㌀"]),
 ('{"type":"Nmt"}',["a\tb\u200bc\u0001","\u0085x\u2028y\ufeff","\u007f\u008f"]),
 ('{"type":"ByteLevel"}',["a é\n","中"]),
 ('{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}',["Äb\u0000\t中\ufffd","É\u00adx\u200d","a中b文"," \r\n"]),
 ('{"type":"BertNormalizer","clean_text":false,"handle_chinese_chars":false,"strip_accents":true,"lowercase":false}',["ÄÉ中\t","e\u0301"]),
 ('{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":false,"strip_accents":false,"lowercase":true}',["ÄÉ\u0007"]),
 ('{"type":"BertNormalizer","clean_text":false,"handle_chinese_chars":false,"strip_accents":null,"lowercase":false}',["ÄÉ"]),
 ('{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"},{"type":"Lowercase"}]}',["ÀÉîÕü","Ñandú"]),
]


def component(section, spec):
    whole = json.loads(Tokenizer(models.BPE()).to_str())
    whole[section] = json.loads(spec)
    return getattr(Tokenizer.from_str(json.dumps(whole)), section)


def pieces(spec, s):
    at = [0]
    for c in s:
        at.append(at[-1] + len(c.encode()))
    return [{"text": p, "start": at[a], "end": at[b]} for p, (a, b) in component("pre_tokenizer", spec).pre_tokenize_str(s)]


for spec, texts in PIECES:
    for s in texts:
        print(json.dumps({"pre_tokenizer": json.loads(spec), "text": s, "pieces": pieces(spec, s)}, ensure_ascii=False))
for spec, texts in NORMAL:
    for s in texts:
        print(json.dumps({"normalizer": json.loads(spec), "text": s, "normal": component("normalizer", spec).normalize_str(s)}))
