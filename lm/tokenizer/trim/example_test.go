package trim_test

import (
	"fmt"

	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
)

// The tokens of a sentence are counted, and a tokenizer is made that has these, the bytes, and the special ones.
func ExampleVocabulary_Select() {
	v, err := trim.Read("../../../testdata/nano/base")
	if err != nil {
		panic(err)
	}

	ids, err := v.Tokenizer().Encode("Wanda Thorne works as a baker.", tokenizer.EncodeOptions{})
	if err != nil {
		panic(err)
	}

	counts := make([]int64, v.Tokens())
	for _, id := range ids {
		counts[id]++
	}

	s, err := v.Select(counts, trim.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(len(s.Old), "of", v.Tokens(), "tokens stay")
	// Output: 320 of 768 tokens stay
}
