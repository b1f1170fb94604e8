package corpus

import (
	"fmt"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

const nano = "../../testdata/nano/"

// The hashes were computed in Python 3.12 with the tokenizers library, the random module as the published calibration
// code uses it, and hashlib.
func TestNanoWindowsEqualPython(t *testing.T) {
	tok, err := tokenizer.Load(nano + "base")
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		file string
		o    SampleOptions
		hash string
	}{
		{
			"text/calib.txt",
			SampleOptions{Samples: 8, SeqLen: 128},
			"dfb959f29f64a2a2c1a0f885c99e02df2c33e8f9e360445917bc0cd05dd8c358",
		},
		{
			"text/calib.txt",
			SampleOptions{SeqLen: 64, Seed: 42},
			"0d0266192fe3083a00d942aaa100d3804f57223ffee61c1919bfbbd23c911c16",
		},
		{
			"train/tales.jsonl",
			SampleOptions{Samples: 8, SeqLen: 40},
			"4406ba9782683eee7da7104f23907ddafd70fe28a86cfb7d522a37b9c762d637",
		},
		{
			"train/news.jsonl",
			SampleOptions{Samples: 16, SeqLen: 24, Seed: 3},
			"2934558ccb6946f66aabb006ab86c243ba6b4b969c17495ef186635d33939c12",
		},
	} {
		w, err := Sample(ctx, nano+c.file, tok, c.o)
		if err != nil {
			t.Fatal(err)
		}

		if w.Hash != c.hash {
			t.Errorf("%s with %+v: hash %s, want %s", c.file, c.o, w.Hash, c.hash)
		}
	}

	w, err := Cut(ctx, nano+"text/calib.txt", tok, CutOptions{SeqLen: 128})
	if err != nil {
		t.Fatal(err)
	}

	if want := "9a56db278b275533b9f69aac4b50e5490391b8cd30c4b3fb655890e3bf51503b"; w.Hash != want ||
		w.Tokens != 21916 || w.Dropped != 21916%128 {
		t.Errorf("cut: hash %s of %d tokens, %d dropped; want %s of 21916", w.Hash, w.Tokens, w.Dropped, want)
	}
}

func ExampleSample() {
	tok, err := tokenizer.Load(nano + "base")
	if err != nil {
		fmt.Println(err)
		return
	}

	w, err := Sample(ctx, nano+"text/calib.txt", tok, SampleOptions{Samples: 8, SeqLen: 128})
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(w.Count, "windows of", w.SeqLen, "from", w.Tokens, "tokens,", w.Mode)
	fmt.Println(w.Hash[:16])
	// Output:
	// 8 windows of 128 from 21916 tokens, joined
	// dfb959f29f64a2a2
}

func ExampleCut() {
	tok, err := tokenizer.Load(nano + "base")
	if err != nil {
		fmt.Println(err)
		return
	}

	w, err := Cut(ctx, nano+"text/test.txt", tok, CutOptions{SeqLen: 256, Convention: Rolling, Stride: 128, Limit: 3})
	if err != nil {
		fmt.Println(err)
		return
	}

	for i, labels := range w.Labels {
		context := 0
		for _, label := range labels {
			if label == Ignore {
				context++
			}
		}

		fmt.Println("window", i, "predicts", len(w.IDs[i])-context, "tokens after", context)
	}
	// Output:
	// window 0 predicts 255 tokens after 1
	// window 1 predicts 128 tokens after 128
	// window 2 predicts 128 tokens after 128
}

func BenchmarkSample(b *testing.B) {
	tok, err := tokenizer.Load(nano + "base")
	if err != nil {
		b.Fatal(err)
	}

	b.SetBytes(66162)

	for b.Loop() {
		if _, err := Sample(ctx, nano+"text/calib.txt", tok, SampleOptions{Samples: 16, SeqLen: 128}); err != nil {
			b.Fatal(err)
		}
	}
}
