package tokenizer_test

import (
	"fmt"

	"github.com/modelcompress/compress/lm/tokenizer"
)

func ExampleLoad() {
	tok, err := tokenizer.Load("testdata/llama3.json")
	if err != nil {
		fmt.Println(err)
		return
	}

	ids, err := tok.Encode("Question: 6 + 17 =", tokenizer.EncodeOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}

	first, _ := tok.Token(ids[0])
	fmt.Printf("%s %q\n", first, tok.Decode(ids, true))
	// Output: <s> "Question: 6 + 17 ="
}

func ExampleTokenizer_EncodeOffsets() {
	tok, err := tokenizer.Load("testdata/uncased.json")
	if err != nil {
		fmt.Println(err)
		return
	}

	text := "Question: ÄRGER"
	_, spans, err := tok.EncodeOffsets(text, tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, sp := range spans {
		fmt.Printf("%q ", text[sp.Start:sp.End])
	}

	fmt.Println()
	// Output: "Qu" "e" "s" "t" "ion" ":" "Ä" "R" "G" "E" "R"
}

func ExampleTokenizer_StreamDecoder() {
	tok, err := tokenizer.Load("testdata/gpt2.json")
	if err != nil {
		fmt.Println(err)
		return
	}

	ids, err := tok.Encode("the 😀!", tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		fmt.Println(err)
		return
	}

	d := tok.StreamDecoder(true)
	for _, id := range ids {
		fmt.Printf("%q ", d.Next(id))
	}

	fmt.Printf("%q\n", d.Flush())
	// Output: "t" "he" " " "" "" "" "😀" "!" ""
}
