package quantize

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

var ctx = context.Background()

// TestMain gives property tests the same draws in every run; -rapid.seed=0 draws anew.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// nano is the tiny model of the project.
const nano = "../testdata/nano/base"

// open loads a model on so many threads.
func open(t testing.TB, dir string, threads int) *lm.Model {
	t.Helper()
	dev, err := device.Open("cpu", device.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	m, err := lm.Load(ctx, dir, dev, lm.Options{Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.Close()
		_ = dev.Close()
	})
	return m
}

// calibration is some text of the tiny model.
func calibration(t testing.TB, m *lm.Model, windows, length int) corpus.Windows {
	t.Helper()
	text, err := os.ReadFile("../testdata/nano/text/calib.txt")
	if err != nil {
		t.Fatal(err)
	}

	tok, err := tokenizer.Load(nano)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), tokenizer.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}

	w := corpus.Windows{SeqLen: length, Hash: "calib.txt", Source: "calib.txt"}
	for i := range windows {
		w.IDs = append(w.IDs, ids[i*length:][:length])
	}
	return w
}

// options are those of a scheme with groups that divide the tiny model's inputs.
func options(t testing.TB, scheme, method, out string) Options {
	t.Helper()
	s, err := SchemeByName(scheme)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Scheme: s, Method: method, Out: out}
	if s.Weights.Kind == Int && s.Weights.Strategy == PerGroup {
		o.Group = 32
	}
	return o
}

// files reads a folder.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}
	return all
}
