package lm

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/weights/weightstest"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/safetensors"
)

// TestDecoded: a model that is stored quantised computes, differentiates, changes and saves as the same values stored
// as floats do, to the last bit, streamed or not, and has their fingerprint.
func TestDecoded(t *testing.T) {
	ids := tokens(2, 768, 7, 5)
	for _, format := range weightstest.Formats() {
		for _, stream := range []bool{false, true} {
			quantised, plain := weightstest.Quantise(t, nanoBase, format)
			o := Options{Stream: stream, Decode: true}
			got, want := load(t, quantised, cpuDevice(t, 2), o), load(t, plain, cpuDevice(t, 2), o)
			if got.Quantisation() == "" || want.Quantisation() != "" {
				t.Errorf("%s: quantisation %q and %q", format, got.Quantisation(), want.Quantisation())
			}

			all := ForwardOptions{Logits: true}
			sameBits(t, format, forward(t, got, ids, all), forward(t, want, ids, all))
			sameGradients(t, got, want, ids)

			a, errA := got.Fingerprint(ctx)
			b, errB := want.Fingerprint(ctx)
			if errA != nil || errB != nil || a != b {
				t.Errorf("%s: fingerprints %s and %s (%v, %v)", format, a, b, errA, errB)
			}

			for _, m := range []*Model{got, want} {
				name := m.Linears(1)[0].Name
				w, err := m.MutableParam(name)
				if err != nil {
					t.Fatal(err)
				}
				clear(w.Buf.Bytes()[:64])
				w.Buf.Changed()
			}
			sameBits(t, format, forward(t, got, ids, all), forward(t, want, ids, all))

			// A change stays when the block is given back; all else comes back from the file.
			got.ReleaseBlock(1, false)
			got.ReleaseBlock(2, false)
			sameBits(t, format, forward(t, got, ids, all), forward(t, want, ids, all))
			sameSaved(t, got, want, SaveOptions{})
			sameSaved(t, got, want, SaveOptions{DType: safetensors.BF16})
		}
	}
}

// TestDecodedExperts: experts that lie quantised in one tensor of a block, each the other way round than they are
// multiplied, are the experts of the same values as floats.
func TestDecodedExperts(t *testing.T) {
	config := maps.Clone(newer()["gpt-oss"])
	config["num_hidden_layers"] = 3
	config["hidden_size"] = 32
	config["intermediate_size"] = 32
	quantised, plain := weightstest.Quantise(t, fuse(t, recipe{config: config, seed: 9}.write(t, t.TempDir())), "mxfp4")

	for _, o := range []Options{{Decode: true}, {Stream: true, Decode: true}} {
		got, want := load(t, quantised, cpuDevice(t, 2), o), load(t, plain, cpuDevice(t, 2), o)
		ids := tokens(2, 37, 7, 5)
		sameBits(t, "mxfp4", forward(t, got, ids, ForwardOptions{Logits: true}),
			forward(t, want, ids, ForwardOptions{Logits: true}))
		sameGradients(t, got, want, ids)
		sameSaved(t, got, want, SaveOptions{})
	}
}

func sameBits(t *testing.T, format string, got, want *Result) {
	t.Helper()
	if got.Loss != want.Loss {
		t.Errorf("%s: loss %v, want %v", format, got.Loss, want.Loss)
	}
	a, b := values(got.Logits), values(want.Logits)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("%s: logit %d is %v, want %v", format, i, a[i], b[i])
		}
	}
}

func sameGradients(t *testing.T, got, want *Model, ids [][]int32) {
	t.Helper()
	grads := func(m *Model) map[string][]float32 {
		all := map[string][]float32{}
		hooks := &Hooks{WeightGrad: func(name string, g kernels.Mat) error {
			all[name] = values(g)
			return nil
		}}
		_, err := m.Backward(ctx, ids, BackwardOptions{Hooks: hooks})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}

	a, b := grads(got), grads(want)
	for name, g := range b {
		for i := range g {
			if a[name][i] != g[i] {
				t.Fatalf("gradient of %s, element %d: %v, want %v", name, i, a[name][i], g[i])
			}
		}
	}
}

// sameSaved compares what two models save, file by file.
func sameSaved(t *testing.T, got, want *Model, o SaveOptions) {
	t.Helper()
	dirs := [2]string{}
	for i, m := range []*Model{got, want} {
		dirs[i] = filepath.Join(t.TempDir(), "out")
		s, err := m.NewSaver(dirs[i], o)
		if err == nil {
			err = s.Finish(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	weightstest.Values(t, openSaved(t, dirs[0]), openSaved(t, dirs[1]))
	entries, err := os.ReadDir(dirs[1])
	if err != nil {
		t.Fatal(err)
	}
	if others, err := os.ReadDir(dirs[0]); err != nil || len(others) != len(entries) {
		t.Errorf("files %v, want %v (%v)", others, entries, err)
	}
	for _, e := range entries {
		if e.Name() == safetensors.SingleName { // the tensors are in another order
			continue
		}
		a, errA := os.ReadFile(filepath.Join(dirs[0], e.Name()))
		b, errB := os.ReadFile(filepath.Join(dirs[1], e.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %s\nwant %s (%v, %v)", e.Name(), a, b, errA, errB)
		}
	}
}

func openSaved(t *testing.T, dir string) *safetensors.Dir {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestDecodedMemory: streaming holds the decoded matrices of one block, and no pages of others.
func TestDecodedMemory(t *testing.T) {
	quantised, _ := weightstest.Quantise(t, nanoBase, "gptq")
	dev := &accountant{Device: cpu.New(cpu.Options{})}
	m := load(t, quantised, dev, Options{Stream: true, Decode: true})

	block := 0
	for _, l := range m.Linears(0) {
		block += 2 * l.In * l.Out
	}

	for range 2 {
		peak := 0
		forward(t, m, tokens(1, 768, 5), ForwardOptions{Hooks: &Hooks{BlockOutput: func(int, kernels.Mat) {
			held := 0
			for i, b := range dev.live {
				if b.Len > 0 && b.DType == kernels.F16 {
					held += dev.size[i]
				}
			}
			peak = max(peak, held)
		}}})
		if peak != block {
			t.Errorf("%d bytes of decoded matrices are held, a block has %d", peak, block)
		}
	}
}
