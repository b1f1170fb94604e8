"""Writes characters.json: what CPython says about every character that it knows.

    python3 characters.py > characters.json        # made with CPython 3.11, Unicode 14

known are ranges of assigned characters; islower and the others are ranges of those for which the method of str is true; upper and the others are what the method
changes: the first and the last of characters that are so far apart as the fourth number says, and their distance to what they become, or that as a text.
"""
import json, sys, unicodedata

ALL = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
KNOWN = [c for c in ALL if unicodedata.category(c) not in ("Cn", "Co")]


def ranges(chars):
    out = []
    for c in map(ord, chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return " ".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in out)


def spread(chars):
    """Ranges of characters with the same distance between what they are and what they become, or single ones with their text."""
    out = []
    for c, to in chars:
        c, gap = ord(c), ord(to) - ord(c) if len(to) == 1 else to
        if out and out[-1][2] == gap and isinstance(gap, int) and out[-1][1] + out[-1][3] == c:
            out[-1][1] = c
        elif out and out[-1][2] == gap and isinstance(gap, int) and out[-1][0] == out[-1][1] and c - out[-1][1] == 2:
            out[-1][1], out[-1][3] = c, 2
        else:
            out.append([c, c, gap, 1])
    return out


out = {"python": sys.version.split()[0], "unicode": unicodedata.unidata_version, "known": ranges(KNOWN)}
for name in ("islower", "isupper", "isalpha", "isdecimal", "isdigit", "isnumeric", "isspace", "isprintable"):
    out[name] = ranges(c for c in KNOWN if getattr(c, name)())
for name in ("upper", "lower", "title"):
    out[name] = spread((c, getattr(c, name)()) for c in KNOWN if getattr(c, name)() != c)
print("{\n" + ",\n".join(json.dumps(k) + ": " + json.dumps(v, ensure_ascii=True, separators=(",", ":")) for k, v in out.items()) + "\n}")
