package ggufmodel

import (
	"maps"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
)

// splitter is what a name in tokenizer.ggml.pre stands for: how a byte-level vocabulary cuts text into words before it
// merges, as the tokenizer.json has it that the name was given to.
type splitter struct {
	steps []string // names of cuts and regular expressions, of which each cuts the pieces of those before
	// whole: a word that is a token stays whole whatever the merges.
	whole bool
	// begin: a text begins with the token for that unless the file says otherwise.
	begin bool
	nfc   bool // text is composed first
	// english: the last cut is that of GPT-2.
	english bool
}

// Regular expressions of more than one name.
const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	tailSpaces   = `\s*[\r\n]+|\s+(?!\S)|\s+`
	symbols      = ` ?[^\s\p{L}\p{N}]+[\r\n]*|` + tailSpaces

	gpt2Split   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Split = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` + symbols
	qwen2Split  = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` + symbols
	qwen35Split = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + tailSpaces

	upper       = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lower       = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	slashes     = ` ?[^\s\p{L}\p{N}]+[\r\n/]*|` + tailSpaces
	tekkenSplit = `[^\r\n\p{L}\p{N}]?` + upper + `*` + lower + `+|[^\r\n\p{L}\p{N}]?` + upper + `+` + lower + `*|\p{N}|` +
		slashes
	gpt4oSplit = `[^\r\n\p{L}\p{N}]?` + upper + `*` + lower + `+` + contractions + `?|[^\r\n\p{L}\p{N}]?` + upper + `+` +
		lower + `*` + contractions + `?|\p{N}{1,3}|` + slashes

	ideographs = `[一-龥぀-ゟ゠-ヿ]+`
	deepseek3  = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|` + tailSpaces
	asian           = `[一-龥ࠀ-一가-퟿]+`
	deepseekLetters = `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ` +
		`Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ` +
		`𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+`
	deepseekPoints = `\s?[!-/:-~！-／：-～‘-‟　-。]+`
	bloomSplit     = ` ?[^(\s|.,!?…。，、।۔،)]+`
	bailingSplit   = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|` +
		`\s*[\r\n]|\s+(?!\S)|\s+`
	seedSplit = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|` + tailSpaces
)

// Cuts that have a component of their own, rather than a regular expression.
const (
	digitCut   = "each digit"
	numberCut  = "runs of digits"
	pointCut   = "runs of punctuation"
	englishCut = "words as GPT-2"
)

// Splitters of more than one name.
var (
	gpt2Words    = splitter{english: true}
	codeWords    = splitter{steps: []string{digitCut}, english: true}
	llama3Words  = splitter{steps: []string{llama3Split}, whole: true, begin: true}
	llama3Merged = splitter{steps: []string{llama3Split}}
	qwen2Words   = splitter{steps: []string{qwen2Split}, nfc: true}
	plainQwen2   = splitter{steps: []string{qwen2Split}}
	gpt4oWords   = splitter{steps: []string{gpt4oSplit}}
	deepseekV3   = splitter{steps: []string{`\p{N}{1,3}`, ideographs, deepseek3}}
	bloomWords   = splitter{steps: []string{bloomSplit}}
	bailingWords = splitter{steps: []string{bailingSplit}}
)

// splitters is the table of names, which are llama.cpp's.
var splitters = map[string]splitter{
	"default": {steps: []string{`[\p{P}\$\+<=>\^~\|]+`, gpt2Split, `\p{N}+`, `[0-9][0-9][0-9]`}},

	"gpt-2": gpt2Words, "phi-2": gpt2Words, "gigachat": gpt2Words, "a.x-4.0": gpt2Words, "mellum": gpt2Words,
	"mpt": gpt2Words, "olmo": gpt2Words, "jais": gpt2Words, "trillion": gpt2Words, "granite-docling": gpt2Words,
	"exaone4": gpt2Words, "jina-es": gpt2Words, "jina-de": gpt2Words, "jina-v2-es": gpt2Words, "jina-v2-de": gpt2Words,

	"starcoder": codeWords, "refact": codeWords, "smollm": codeWords, "codeshell": codeWords, "exaone": codeWords,
	"minerva-7b": codeWords, "mellum2": codeWords,
	"command-r": {steps: []string{digitCut}, english: true, nfc: true},

	"llama-bpe": llama3Words, "llama3": llama3Words, "llama-v3": llama3Words, "falcon3": llama3Words,
	"falcon-h1": llama3Words, "pixtral": llama3Words, "midm-2.0": llama3Words, "lfm2": llama3Words,
	"dbrx": llama3Merged, "smaug-bpe": llama3Merged, "chatglm-bpe": llama3Merged,
	"glm4": {steps: []string{llama3Split}, whole: true}, "glm5": {steps: []string{llama3Split}, whole: true},

	"qwen2": qwen2Words, "deepseek-r1-qwen": qwen2Words, "kormo": qwen2Words, "f2llmv2": qwen2Words,
	"megrez": qwen2Words, "stablelm2": plainQwen2, "hunyuan": plainQwen2, "solar-open": plainQwen2,
	"grok-2": plainQwen2, "qwen35": {steps: []string{qwen35Split}},

	"gpt-4o": gpt4oWords, "llama4": gpt4oWords, "kanana2": gpt4oWords, "minimax-m2": gpt4oWords,
	"tekken": {steps: []string{tekkenSplit}, whole: true, begin: true},

	"deepseek-llm":   {steps: []string{`[\r\n]`, deepseekLetters, deepseekPoints, `\s+$`, asian, `\p{N}+`}},
	"deepseek-coder": {steps: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, asian, `\p{N}`}},
	"deepseek-v3":    deepseekV3, "hunyuan-dense": deepseekV3, "joyai-llm": deepseekV3,

	"falcon": {steps: []string{pointCut, englishCut, numberCut, `[0-9][0-9][0-9]`}},

	"bloom": bloomWords, "poro-chat": bloomWords, "gpt3-finnish": bloomWords,
	"viking":     {steps: []string{bloomSplit, `\p{N}`}},
	"bailingmoe": bailingWords, "bailingmoe2": bailingWords, "llada-moe": bailingWords,
	"seed-coder": {steps: []string{seedSplit}},
}

// splitterNames lists the names, sorted.
func splitterNames() string { return strings.Join(slices.Sorted(maps.Keys(splitters)), ", ") }

// sequence writes a pre_tokenizer.
func (s splitter) sequence() ([]byte, error) {
	var steps []any
	bytes := false
	for _, step := range s.steps {
		switch step {
		case digitCut, numberCut:
			steps = append(steps, map[string]any{"type": "Digits", "individual_digits": step == digitCut})
		case pointCut:
			steps = append(steps, map[string]any{"type": "Punctuation", "behavior": "Contiguous"})
		case englishCut:
			bytes = true
			steps = append(steps, byteLevel(true))
		default:
			steps = append(steps, map[string]any{
				"type": "Split", "pattern": map[string]string{"Regex": step}, "behavior": "Isolated", "invert": false,
			})
		}
	}
	if !bytes {
		steps = append(steps, byteLevel(s.english))
	}

	if len(steps) == 1 {
		return orderedjson.Text(steps[0])
	}
	return orderedjson.Text(map[string]any{"type": "Sequence", "pretokenizers": steps})
}

// byteLevel is the component that spells bytes as letters, after a cut into words if there is one.
func byteLevel(words bool) map[string]any {
	return map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words}
}
