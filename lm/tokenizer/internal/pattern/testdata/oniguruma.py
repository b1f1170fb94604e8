"""Writes oniguruma.jsonl: patterns put together at random, and those of known tokenizers, with what Oniguruma finds, which is the engine of Hugging
Face's tokenizers.

    python3 oniguruma.py > oniguruma.jsonl        # made with tokenizers 0.23
"""
import json, random
from tokenizers import Regex, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
KNOWN = [
    GPT2,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[一-龥぀-ゟ゠-ヿ]+|\p{N}{1,3}",
]
TEXTS = ["It's THE 'End', isn't it? I'LL  go\n\n  now! 12345 items/é̱ü ", "中文かなカナ123４五, Straße ǅ\t\r\nx = [a_b];  ", "aab abab ba\nb aB Ab a1 b2  ab", "éa EÀ ß ſs ½Ⅷ a-b_c d.e", ""]
ATOMS = ["a", "b", "ab", "[ab]", "[^a]", r"\d", r"\w", r"\s", r"\S", r"\W", ".", r"\p{L}", r"\p{Lu}", r"\P{L}", r"\p{N}", "[a-c1-3]", r"[^\s\d]", "é", "[[:alpha:]]", r"[\w&&[^b]]", r"\n"]
ENDS = ["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "*?", "+?", "??", "++", "*+", "?+", "{1,2}?"]
AROUND = [r"\b", r"\B", "^", "$", r"\A", r"\z", r"\Z", "(?=a)", "(?!b)", "(?<=a)", "(?<!a)", r"(?=\s)", r"(?<!\d)"]


def draw(r, depth=0):
    parts = []
    for _ in range(r.randint(1, 3)):
        kind = r.random()
        if kind < 0.15 and depth < 2:
            open_ = r.choice(["(?:", "(", "(?>", "(?i:", "(?m:"])
            parts.append(open_ + draw(r, depth + 1) + ")" + r.choice(["", "", "?", "{1,2}"]))
        elif kind < 0.3:
            parts.append(r.choice(AROUND))
        else:
            parts.append(r.choice(ATOMS) + r.choice(ENDS))
    text = "".join(parts)
    return text + "|" + draw(r, depth + 1) if r.random() < 0.3 and depth < 2 else text


def found(pattern, s):
    return [p for p, _ in pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(s)]


def main():
    r, rows, seen = random.Random(5), [(p, t) for p in KNOWN for t in TEXTS[:-1]], set()
    while len(rows) < 320:
        pattern, s = draw(r), r.choice(TEXTS[2:4])
        try:
            got = found(pattern, s)
        except BaseException:
            continue
        if pattern not in seen and 1 < len(got) and len(got) + len(pattern) < 40:
            seen.add(pattern)
            rows.append((pattern, s))
    for pattern, s in rows:
        print(json.dumps({"pattern": pattern, "text": s, "want": found(pattern, s)}, ensure_ascii=False))


main()
