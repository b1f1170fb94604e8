package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// Decode returns the text of ids. With skipSpecial special tokens are left out. Ids that no token has are left out
// too. Bytes that do not form UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if s, ok := t.Token(id); ok && !(skipSpecial && t.tokens[id].kind == tokenSpecial) {
			tokens = append(tokens, s)
		}
	}

	if t.decoder == nil {
		return strings.Join(tokens, " ")
	}
	for _, step := range t.decoder {
		tokens = step(tokens)
	}

	return strings.Join(tokens, "")
}

// decodeStep turns the strings of tokens into strings nearer to text; it may change the slice it gets.
type decodeStep func(tokens []string) []string

func decoderKinds() map[string]func(*config.Node) decodeStep {
	return map[string]func(*config.Node) decodeStep{
		"ByteLevel":    func(*config.Node) decodeStep { return decodeBytes },
		"Metaspace":    newMetaspaceDecoder,
		"WordPiece":    newWordPieceDecoder,
		"BPEDecoder":   newSuffixDecoder,
		"ByteFallback": func(*config.Node) decodeStep { return decodeFallback },
		"Fuse":         func(*config.Node) decodeStep { return fuse },
		"Strip":        newStripDecoder,
		"Replace":      newReplaceDecoder,
		"CTC":          newCTCDecoder,
		"Sequence":     nil, // spelled out by appendDecoders
	}
}

// buildDecoder reads the section "decoder" as a flat list; there is none without it.
func (t *Tokenizer) buildDecoder(v config.Value) error {
	if v.Absent() {
		return nil
	}

	n, err := config.NewNode(v, 0)
	if err != nil {
		return err
	}

	t.byteDecoder = n.Kind == "ByteLevel"
	t.decoder, err = appendDecoders([]decodeStep{}, n)
	return err
}

func appendDecoders(list []decodeStep, n *config.Node) ([]decodeStep, error) {
	if n.Kind == "Sequence" {
		for _, c := range n.List("decoders") {
			var err error
			if list, err = appendDecoders(list, c); err != nil {
				return nil, err
			}
		}

		return list, n.Err
	}

	build := decoderKinds()[n.Kind]
	if build == nil {
		return nil, config.Unknown(n.Kind, decoderKinds())
	}

	return append(list, build(n)), n.Err
}

// tokenBytes returns the bytes that a byte-level token stands for; a token with any other character in it stands for
// itself.
func tokenBytes(s string) string {
	if raw, ok := prepare.UnmapBytes(s); ok {
		return raw
	}
	return s
}

func decodeBytes(tokens []string) []string {
	var b strings.Builder
	for _, s := range tokens {
		b.WriteString(tokenBytes(s))
	}
	return []string{validUTF8(b.String())}
}

// validUTF8 puts U+FFFD in place of every invalid sequence.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return prepare.Repair(prepare.Piece{Text: s}, false).Text
}

func newMetaspaceDecoder(n *config.Node) decodeStep {
	mark, scheme := string(n.Char("replacement", '▁')), prepare.ReadPrepend(n)
	return func(tokens []string) []string {
		for i, s := range tokens {
			with := " "
			if i > 0 || scheme == prepare.PrependNever {
				tokens[i] = strings.ReplaceAll(s, mark, with)
			} else {
				tokens[i] = strings.ReplaceAll(s, mark, "")
			}
		}
		return tokens
	}
}

func newWordPieceDecoder(n *config.Node) decodeStep {
	prefix, tidy := n.Text("prefix", "##"), n.Flag("cleanup", true)
	return func(tokens []string) []string {
		for i, s := range tokens {
			if i > 0 {
				if rest, ok := strings.CutPrefix(s, prefix); ok {
					s = rest
				} else {
					s = " " + s
				}
			}

			if tidy {
				s = tidyEnglish(s)
			}

			tokens[i] = s
		}

		return tokens
	}
}

// tidyEnglish takes out the spaces in front of punctuation and contractions, one rule after the other.
func tidyEnglish(s string) string {
	for _, r := range [][2]string{
		{" .", "."},
		{" ?", "?"},
		{" !", "!"},
		{" ,", ","},
		{" ' ", "'"},
		{" n't", "n't"},
		{" 'm", "'m"},
		{" do not", " don't"},
		{" 's", "'s"},
		{" 've", "'ve"},
		{" 're", "'re"},
	} {
		s = strings.ReplaceAll(s, r[0], r[1])
	}

	return s
}

func newSuffixDecoder(n *config.Node) decodeStep {
	suffix := n.Text("suffix", "</w>")
	return func(tokens []string) []string {
		for i, s := range tokens {
			with := " "
			if i == len(tokens)-1 {
				with = ""
			}
			tokens[i] = strings.ReplaceAll(s, suffix, with)
		}
		return tokens
	}
}

// fallbackByte returns the byte that a token such as "<0x0A>" stands for.
func fallbackByte(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	high, ok1 := hexDigit(s[3])
	low, ok2 := hexDigit(s[4])
	return high<<4 | low, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// decodeFallback joins runs of byte tokens to text; a run that is not UTF-8 becomes one U+FFFD for each byte.
func decodeFallback(tokens []string) []string {
	out := make([]string, 0, len(tokens))
	var run []byte
	flush := func() {
		if utf8.Valid(run) {
			if len(run) > 0 {
				out = append(out, string(run))
			}
		} else {
			for range run {
				out = append(out, "\uFFFD")
			}
		}

		run = run[:0]
	}

	for _, s := range tokens {
		if b, ok := fallbackByte(s); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, s)
	}

	flush()
	return out
}

func fuse(tokens []string) []string { return []string{strings.Join(tokens, "")} }

func newStripDecoder(n *config.Node) decodeStep {
	char := string(n.Char("content", ' '))
	start, stop := n.Integer("start", 0, 0, maxText), n.Integer("stop", 0, 0, maxText)
	return func(tokens []string) []string {
		for i, s := range tokens {
			for k := int64(0); k < start && strings.HasPrefix(s, char); k++ {
				s = s[len(char):]
			}
			for k := int64(0); k < stop && strings.HasSuffix(s, char); k++ {
				s = s[:len(s)-len(char)]
			}

			tokens[i] = s
		}

		return tokens
	}
}

func newReplaceDecoder(n *config.Node) decodeStep {
	pattern, with := n.Object("pattern"), n.Text("content", "")
	if pattern.Has("Regex") {
		n.Fail(fmt.Errorf("%w: a regular expression in a decoder", ErrUnsupported), "pattern")
	}

	old := pattern.Need("String")
	n.Fail(pattern.Err, "pattern")
	return func(tokens []string) []string {
		for i, s := range tokens {
			if old != "" {
				tokens[i] = strings.ReplaceAll(s, old, with)
			}
		}
		return tokens
	}
}

func newCTCDecoder(n *config.Node) decodeStep {
	pad, delimiter := n.Text("pad_token", "<pad>"), n.Text("word_delimiter_token", "|")
	tidy := n.Flag("cleanup", true)
	return func(tokens []string) []string {
		out := tokens[:0]
		last := ""
		for i, s := range tokens {
			if i > 0 && s == last {
				continue
			}

			last = s
			s = strings.ReplaceAll(s, pad, "")
			if tidy {
				s = strings.ReplaceAll(tidyEnglish(s), delimiter, " ")
			}
			if s != "" {
				out = append(out, s)
			}
		}

		return out
	}
}
