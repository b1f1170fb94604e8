package prepare

import (
	"encoding/json"
	"testing"
)

// libraryRow is a component of a tokenizer.json, a text, and what Hugging Face's tokenizers makes of it: pieces with
// their bytes in the text, or the normalized text. testdata/tokenizers.py compares the rows with it and fills them in.
type libraryRow struct{ spec, text, want string }

// pieceRows are pre-tokenizers.
var pieceRows = []libraryRow{
	{
		`{"type":"Whitespace"}`, "Don't stop,  it's 12.5€!",
		`[["Don",0,3],["'",3,4],["t",4,5],["stop",6,10],[",",10,11],["it",13,15],["'",15,16],["s",16,17],["12",18,20],[".",20,21],["5",21,22],["€!",22,26]]`,
	},
	{`{"type":"Whitespace"}`, " a_b é1-中文 ", `[["a_b",1,4],["é1",5,8],["-",8,9],["中文",9,15]]`},
	{`{"type":"Whitespace"}`, " a \n", `[["a",2,3]]`},
	{`{"type":"Whitespace"}`, "", `[]`},
	{`{"type":"Whitespace"}`, "--a--", `[["--",0,2],["a",2,3],["--",3,5]]`},
	{`{"type":"Whitespace"}`, "½ⅷ²_", `[["½",0,2],["ⅷ",2,5],["²",5,7],["_",7,8]]`},
	{
		`{"type":"WhitespaceSplit"}`, "Don't stop,  it's 12.5€!",
		`[["Don't",0,5],["stop,",6,11],["it's",13,17],["12.5€!",18,26]]`,
	},
	{`{"type":"WhitespaceSplit"}`, " a b\n\n", `[["a",2,3],["b",6,7]]`},
	{`{"type":"WhitespaceSplit"}`, "   ", `[]`},
	{`{"type":"WhitespaceSplit"}`, "a​bc", `[["a​b",0,5],["c",7,8]]`},
	{
		`{"type":"BertPreTokenizer"}`, "Don't stop,  it's 12.5€!",
		`[["Don",0,3],["'",3,4],["t",4,5],["stop",6,10],[",",10,11],["it",13,15],["'",15,16],["s",16,17],["12",18,20],[".",20,21],["5€",21,25],["!",25,26]]`,
	},
	{`{"type":"BertPreTokenizer"}`, "中文,ab。c", `[["中文",0,6],[",",6,7],["ab",7,9],["。",9,12],["c",12,13]]`},
	{
		`{"type":"BertPreTokenizer"}`, "a$b^c`d|e~f",
		"[[\"a\",0,1],[\"$\",1,2],[\"b\",2,3],[\"^\",3,4],[\"c\",4,5],[\"`\",5,6],[\"d\",6,7],[\"|\",7,8],[\"e\",8,9],[\"~\",9,10],[\"f\",10,11]]",
	},
	{`{"type":"BertPreTokenizer"}`, "«é»—x", `[["«",0,2],["é",2,4],["»",4,6],["—",6,9],["x",9,10]]`},
	{`{"type":"Punctuation","behavior":"Removed"}`, "a!?b.", `[["a",0,1],["b",3,4]]`},
	{`{"type":"Punctuation","behavior":"Removed"}`, "¿qué?", `[["qué",2,6]]`},
	{`{"type":"Punctuation","behavior":"Removed"}`, "a+b$c", `[["a",0,1],["b",2,3],["c",4,5]]`},
	{`{"type":"Punctuation","behavior":"MergedWithPrevious"}`, "a!?b.", `[["a!",0,2],["?",2,3],["b.",3,5]]`},
	{`{"type":"Punctuation","behavior":"MergedWithPrevious"}`, "..a", `[[".",0,1],[".",1,2],["a",2,3]]`},
	{
		`{"type":"Punctuation","behavior":"MergedWithNext"}`, "a!?b.",
		`[["a",0,1],["!",1,2],["?b",2,4],[".",4,5]]`,
	},
	{`{"type":"Punctuation","behavior":"MergedWithNext"}`, "..a", `[[".",0,1],[".a",1,3]]`},
	{
		`{"type":"Punctuation","behavior":"Contiguous"}`, "a!?b...",
		`[["a",0,1],["!?",1,3],["b",3,4],["...",4,7]]`,
	},
	{`{"type":"Punctuation","behavior":"Contiguous"}`, "«é»—x", `[["«",0,2],["é",2,4],["»—",4,9],["x",9,10]]`},
	{
		`{"type":"Digits","individual_digits":true}`, "a12b3",
		`[["a",0,1],["1",1,2],["2",2,3],["b",3,4],["3",4,5]]`,
	},
	{
		`{"type":"Digits","individual_digits":true}`, "x½²٣１",
		`[["x",0,1],["½",1,3],["²",3,5],["٣",5,7],["１",7,10]]`,
	},
	{`{"type":"Digits","individual_digits":false}`, "12a34", `[["12",0,2],["a",2,3],["34",3,5]]`},
	{`{"type":"Digits","individual_digits":false}`, "x½²٣１y", `[["x",0,1],["½²٣１",1,10],["y",10,11]]`},
	{`{"type":"Digits","individual_digits":false}`, "1", `[["1",0,1]]`},
	{`{"type":"CharDelimiterSplit","delimiter":"-"}`, "a-b--c-", `[["a",0,1],["b",2,3],["c",5,6]]`},
	{`{"type":"CharDelimiterSplit","delimiter":"-"}`, "-", `[]`},
	{`{"type":"CharDelimiterSplit","delimiter":"-"}`, "é-中", `[["é",0,2],["中",3,6]]`},
	{`{"type":"UnicodeScripts"}`, "abc かな漢字 def", `[["abc ",0,4],["かな漢字 ",4,17],["def",17,20]]`},
	{
		`{"type":"UnicodeScripts"}`, "Привет, мир hello",
		`[["Привет",0,12],[", ",12,14],["мир ",14,21],["hello",21,26]]`,
	},
	{`{"type":"UnicodeScripts"}`, "١٢ abc", `[["١٢ ",0,5],["abc",5,8]]`},
	{`{"type":"UnicodeScripts"}`, "  a  b", `[["a  b",2,6]]`},
	{`{"type":"UnicodeScripts"}`, "カー々〆", `[["カー々",0,9],["〆",9,12]]`},
	{`{"type":"UnicodeScripts"}`, "a1б2", `[["a",0,1],["1",1,2],["б",2,4],["2",4,5]]`},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "a b  c",
		`[["▁a",0,1],["▁b",1,3],["▁",3,4],["▁c",4,6]]`,
	},
	{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "▁a", `[["▁a",0,4]]`},
	{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, " a", `[["▁a",0,2]]`},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "  ",
		`[["▁",0,1],["▁",1,2]]`,
	},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "a▁b c",
		`[["▁a",0,1],["▁b",1,5],["▁c",5,7]]`,
	},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "é 中",
		`[["▁é",0,2],["▁中",2,6]]`,
	},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}`, "a b",
		`[["a",0,1],["▁b",1,3]]`,
	},
	{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}`, " a", `[["▁a",0,2]]`},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}`, "  ",
		`[["▁",0,1],["▁",1,2]]`,
	},
	{
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`, "a b  c",
		`[["▁a▁b▁▁c",0,6]]`,
	},
	{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`, " a", `[["▁a",0,2]]`},
	{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`, "é", `[["▁é",0,2]]`},
	{
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, "Don't stop,  it's 12.5€!",
		`[["ĠDon",0,3],["'t",3,5],["Ġstop",5,10],[",",10,11],["Ġ",11,12],["Ġit",12,15],["'s",15,17],["Ġ12",17,20],[".",20,21],["5",21,22],["âĤ¬!",22,26]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, " a é",
		`[["Ġa",0,2],["ĠÃ©",2,5]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, "中文 😀",
		`[["Ġä¸Ńæĸĩ",0,6],["ĠðŁĺĢ",6,11]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, "a\n\n b  c\t",
		`[["Ġa",0,1],["ĊĊ",1,3],["Ġb",3,5],["Ġ",5,6],["Ġc",6,8],["ĉ",8,9]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, "'S'll 'LL'",
		`[["Ġ'",0,1],["S",1,2],["'ll",2,5],["Ġ'",5,7],["LL",7,9],["'",9,10]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}`, "a é\n",
		`[["aĠÃ©Ċ",0,5]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}`, "\u0000­",
		`[["ĀġÂŃ",0,4]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`, "x  yz\n\n\nw",
		`[["x",0,1],["Ġ",1,2],["Ġyz",2,5],["ĊĊ",5,7],["Ċ",7,8],["w",8,9]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`, "12ab_é",
		`[["12",0,2],["ab",2,4],["_",4,5],["Ã©",5,7]]`,
	},
	{
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`, "we'd've",
		`[["we",0,2],["'d",2,4],["'ve",4,7]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"Removed","invert":false}`, "xababy",
		`[["x",0,1],["y",5,6]]`,
	},
	{`{"type":"Split","pattern":{"String":"ab"},"behavior":"Removed","invert":false}`, "ab", `[]`},
	{`{"type":"Split","pattern":{"String":"ab"},"behavior":"Removed","invert":false}`, "aab", `[["a",0,1]]`},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"Isolated","invert":false}`, "xababy",
		`[["x",0,1],["ab",1,3],["ab",3,5],["y",5,6]]`,
	},
	{`{"type":"Split","pattern":{"String":"ab"},"behavior":"Isolated","invert":false}`, "ab", `[["ab",0,2]]`},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"MergedWithPrevious","invert":false}`, "xababy",
		`[["xab",0,3],["ab",3,5],["y",5,6]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"MergedWithPrevious","invert":false}`, "abx",
		`[["ab",0,2],["x",2,3]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"MergedWithNext","invert":false}`, "xababy",
		`[["x",0,1],["ab",1,3],["aby",3,6]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"MergedWithNext","invert":false}`, "xab",
		`[["x",0,1],["ab",1,3]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"Contiguous","invert":false}`, "xababyab",
		`[["x",0,1],["abab",1,5],["y",5,6],["ab",6,8]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"."},"behavior":"Removed","invert":true}`, "a.b..",
		`[[".",1,2],[".",3,4],[".",4,5]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"."},"behavior":"Removed","invert":true}`, "...",
		`[[".",0,1],[".",1,2],[".",2,3]]`,
	},
	{
		`{"type":"Split","pattern":{"String":"ab"},"behavior":"MergedWithPrevious","invert":true}`, "xababy",
		`[["x",0,1],["ab",1,3],["aby",3,6]]`,
	},
	{
		`{"type":"Split","pattern":{"Regex":"\\d{1,3}"},"behavior":"Isolated","invert":false}`, "12345ab6",
		`[["123",0,3],["45",3,5],["ab",5,7],["6",7,8]]`,
	},
	{
		`{"type":"Split","pattern":{"Regex":"\\d{1,3}"},"behavior":"Isolated","invert":false}`, "a1",
		`[["a",0,1],["1",1,2]]`,
	},
	{
		`{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false}`, "a   b  ",
		`[["a",0,1],["  ",1,3],[" ",3,4],["b",4,5],["  ",5,7]]`,
	},
	{
		`{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false}`, "a \n b",
		`[["a",0,1],[" \n",1,3],[" ",3,4],["b",4,5]]`,
	},
	{
		`{"type":"Split","pattern":{"Regex":"x*"},"behavior":"Isolated","invert":false}`, "axxb",
		`[["a",0,1],["xx",1,3],["b",3,4]]`,
	},
	{`{"type":"Split","pattern":{"Regex":"x*"},"behavior":"Isolated","invert":false}`, "xx", `[["xx",0,2]]`},
	{`{"type":"Split","pattern":{"Regex":"x*"},"behavior":"Isolated","invert":false}`, "", `[]`},
	{
		`{"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Removed","invert":true}`, "ab1éç 中_",
		`[["ab",0,2],["éç",3,7],["中",8,11]]`,
	},
	{`{"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Removed","invert":true}`, "12", `[]`},
	{
		`{"type":"Split","pattern":{"Regex":"'s|'t|\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+"},"behavior":"Isolated","invert":false}`, "it's  a 'test' #1!\n",
		`[["it",0,2],["'s",2,4],["  ",4,6],["a",6,7],[" '",7,9],["test",9,13],["'",13,14],[" #",14,16],["1",16,17],["!",17,18],["\n",18,19]]`,
	},
	{
		`{"type":"Split","pattern":{"Regex":"'s|'t|\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+"},"behavior":"Isolated","invert":false}`, "é1２",
		`[["é",0,2],["1",2,3],["２",3,6]]`,
	},
	{
		`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Punctuation","behavior":"Isolated"},{"type":"Digits","individual_digits":true}]}`, "a,b 12c!",
		`[["a",0,1],[",",1,2],["b",2,3],["1",4,5],["2",5,6],["c",6,7],["!",7,8]]`,
	},
	{
		`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Punctuation","behavior":"Isolated"},{"type":"Digits","individual_digits":true}]}`, "  x",
		`[["x",2,3]]`,
	},
	{
		`{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]}`, "a 12 é3",
		`[["a",0,1],["Ġ",1,2],["12",2,4],["ĠÃ©",4,7],["3",7,8]]`,
	},
	{
		`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}]}`, "a bc",
		`[["▁a",0,1],["bc",2,4]]`,
	},
	{
		`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}]}`, "  a b",
		`[["a",2,3],["b",4,5]]`,
	},
}

// normalRows are normalizers.
var normalRows = []libraryRow{
	{`{"type":"Lowercase"}`, "A\u00c9\u0130\u00df\u1e9e", "a\u00e9i\u0307\u00df\u00df"},
	{
		`{"type":"Lowercase"}`, "\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3",
		"\u03bf\u03b4\u03bf\u03c3 \u03c3\u03b1\u03c3",
	},
	{`{"type":"Lowercase"}`, "\u01c5 \u2163 \u24b6", "\u01c6 \u2173 \u24d0"},
	{`{"type":"Lowercase"}`, "\u00c0B \u0345\u0391", "\u00e0b \u0345\u03b1"},
	{`{"type":"StripAccents"}`, "e\u0301a\u0327o", "eao"},
	{`{"type":"StripAccents"}`, "\u00e9", "\u00e9"},
	{`{"type":"StripAccents"}`, "\u0915\u094d\u0937", "\u0915\u0937"},
	{`{"type":"StripAccents"}`, "a\u20dd", "a"},
	{`{"type":"Strip","strip_left":true,"strip_right":true}`, " a b\u00a0", "a b"},
	{`{"type":"Strip","strip_left":true,"strip_right":true}`, "\t\n", ""},
	{`{"type":"Strip","strip_left":true,"strip_right":true}`, "\u200ba\u2028", "\u200ba"},
	{`{"type":"Strip","strip_left":true,"strip_right":false}`, " a ", "a "},
	{`{"type":"Strip","strip_left":false,"strip_right":true}`, " a ", " a"},
	{`{"type":"Strip","strip_left":false,"strip_right":true}`, "  ", ""},
	{`{"type":"Prepend","prepend":"▁"}`, "a", "\u2581a"},
	{`{"type":"Prepend","prepend":"▁"}`, "", ""},
	{`{"type":"Prepend","prepend":"▁"}`, " ", "\u2581 "},
	{`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, "a b  c", "a\u2581b\u2581\u2581c"},
	{`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, "", ""},
	{`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, "\u2581 ", "\u2581\u2581"},
	{`{"type":"Replace","pattern":{"String":"aa"},"content":"a"}`, "aaaa", "aa"},
	{`{"type":"Replace","pattern":{"String":"aa"},"content":"a"}`, "aaa", "aa"},
	{`{"type":"Replace","pattern":{"String":"aa"},"content":"a"}`, "b", "b"},
	{`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}`, "a \n\t b", "a b"},
	{`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}`, "\u3000x", " x"},
	{`{"type":"Replace","pattern":{"Regex":"b*"},"content":"-"}`, "abbc", "-a-c-"},
	{`{"type":"Replace","pattern":{"Regex":"b*"},"content":"-"}`, "", ""},
	{`{"type":"Replace","pattern":{"Regex":"b*"},"content":"-"}`, "bb", "-"},
	{`{"type":"Replace","pattern":{"Regex":"(\\d)(?=\\d{3})"},"content":"#"}`, "12345", "##345"},
	{`{"type":"Replace","pattern":{"Regex":"(\\d)(?=\\d{3})"},"content":"#"}`, "1", "1"},
	{`{"type":"NFC"}`, "e\u0301", "\u00e9"},
	{`{"type":"NFC"}`, "\u1100\u1161\u11a8", "\uac01"},
	{`{"type":"NFC"}`, "\u212b", "\u00c5"},
	{`{"type":"NFC"}`, "a\u0323\u0307", "\u1ea1\u0307"},
	{`{"type":"NFD"}`, "\u00e9\uac00", "e\u0301\u1100\u1161"},
	{`{"type":"NFD"}`, "\u1e69", "s\u0323\u0307"},
	{`{"type":"NFKC"}`, "\ufb01\u2460\u00bd", "fi11\u20442"},
	{`{"type":"NFKC"}`, "\uff76\uff9e", "\u30ac"},
	{`{"type":"NFKC"}`, "\u337f", "\u682a\u5f0f\u4f1a\u793e"},
	{`{"type":"NFKC"}`, "\u0132", "IJ"},
	{`{"type":"NFKD"}`, "\ufb01\u00e9", "fie\u0301"},
	{`{"type":"NFKD"}`, "\u3300", "\u30a2\u30cf\u309a\u30fc\u30c8"},
	{`{"type":"Nmt"}`, "a\tb\u200bc\u0001", "a b c"},
	{`{"type":"Nmt"}`, "\u0085x\u2028y\ufeff", "\u0085x y "},
	{`{"type":"Nmt"}`, "\u007f\u008f", ""},
	{`{"type":"ByteLevel"}`, "a \u00e9\n", "a\u0120\u00c3\u00a9\u010a"},
	{`{"type":"ByteLevel"}`, "\u4e2d", "\u00e4\u00b8\u0143"},
	{
		`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`, "\u00c4b\u0000\t\u4e2d\ufffd",
		"ab  \u4e2d ",
	},
	{
		`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`, "\u00c9\u00adx\u200d",
		"ex",
	},
	{
		`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`, "a\u4e2db\u6587",
		"a \u4e2d b \u6587 ",
	},
	{
		`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`, " \r\n",
		"   ",
	},
	{
		`{"type":"BertNormalizer","clean_text":false,"handle_chinese_chars":false,"strip_accents":true,"lowercase":false}`, "\u00c4\u00c9\u4e2d\t",
		"AE\u4e2d\t",
	},
	{
		`{"type":"BertNormalizer","clean_text":false,"handle_chinese_chars":false,"strip_accents":true,"lowercase":false}`, "e\u0301",
		"e",
	},
	{
		`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":false,"strip_accents":false,"lowercase":true}`, "\u00c4\u00c9\u0007",
		"\u00e4\u00e9",
	},
	{
		`{"type":"BertNormalizer","clean_text":false,"handle_chinese_chars":false,"strip_accents":null,"lowercase":false}`, "\u00c4\u00c9",
		"\u00c4\u00c9",
	},
	{
		`{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"},{"type":"Lowercase"}]}`, "\u00c0\u00c9\u00ee\u00d5\u00fc",
		"aeiou",
	},
	{
		`{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"},{"type":"Lowercase"}]}`, "\u00d1and\u00fa",
		"nandu",
	},
}

// TestPiecesOfLibrary: the same pieces, from the same bytes of the text.
func TestPiecesOfLibrary(t *testing.T) {
	for _, r := range pieceRows {
		list, err := Splitters(value(t, r.spec))
		if err != nil {
			t.Errorf("%s: %v", r.spec, err)
			continue
		}

		var want [][3]any
		if err := json.Unmarshal([]byte(r.want), &want); err != nil {
			t.Fatal(err)
		}

		plain, _ := split(t, list, r.text, false)
		got, spans := split(t, list, r.text, true)
		if len(got) != len(want) || len(plain) != len(want) {
			t.Errorf("%s on %q: %q, want %s", r.spec, r.text, got, r.want)
			continue
		}

		for i, p := range got {
			from, to := int(want[i][1].(float64)), int(want[i][2].(float64))
			if p != want[i][0] || plain[i] != p || p != "" && spans[i] != (Span{from, to}) {
				t.Errorf("%s on %q: piece %d is %q (%q without offsets) of %v, want %v", r.spec, r.text, i, p, plain[i],
					spans[i], want[i])
			}
		}
	}
}

// TestNormalTextOfLibrary: the same text, with and without its origin.
func TestNormalTextOfLibrary(t *testing.T) {
	for _, r := range normalRows {
		list, err := Normalizers(value(t, r.spec))
		if err != nil {
			t.Errorf("%s: %v", r.spec, err)
			continue
		}

		for _, track := range []bool{false, true} {
			p := Piece{Text: r.text, First: true}
			for _, n := range list {
				if p, err = n.Normalize(p, track); err != nil {
					t.Fatal(err)
				}
			}

			if p.Text != r.want {
				t.Errorf("%s on %q: %q, want %q", r.spec, r.text, p.Text, r.want)
			}
			if track && p.origin != nil && len(p.origin) != len(p.Text) {
				t.Errorf("%s on %q: %d bytes have %d origins", r.spec, r.text, len(p.Text), len(p.origin))
			}
		}
	}
}
