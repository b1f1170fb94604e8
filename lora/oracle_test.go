package lora

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/lora/internal/mos"
	"github.com/modelcompress/compress/lora/internal/mosfile"
	"github.com/modelcompress/compress/safetensors"
)

// oracle is the folder of the reference numbers, or skips.
func oracle(t testing.TB) string {
	t.Helper()
	root := filepath.Join("..", "..", "shared", "oracle")
	if dir := os.Getenv("COMPRESS_ORACLE"); dir != "" {
		root = dir
	}

	path := filepath.Join(root, "lora")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not there", path)
	}

	return path
}

// cases lists the folders with a case.json below a folder of the oracle.
func cases(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "case.json"))
	if err != nil || len(found) == 0 {
		t.Skipf("%s has no cases (%v)", dir, err)
	}
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tensors is a file of expected numbers.
type tensors struct {
	t *testing.T
	*safetensors.File
}

func openTensors(t *testing.T, path string) tensors {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return tensors{t, f}
}

func (f tensors) floats(name string) []float32 {
	f.t.Helper()
	data, err := f.Bytes(name)
	if err != nil {
		f.t.Fatal(err)
	}

	info, _ := f.Info(name)
	x := make([]float32, len(data)/dtype.Size(info.DType))
	if err := dtype.Decode(x, data, info.DType); err != nil {
		f.t.Fatal(err)
	}

	return x
}

// ids reads rows of token ids or labels, [n, t], or those of one batch of [batches, n, t].
func (f tensors) ids(name string, batch int) [][]int32 {
	f.t.Helper()
	data, err := f.Bytes(name)
	if err != nil {
		f.t.Fatal(err)
	}

	info, _ := f.Info(name)
	shape := info.Shape

	n, w := int(shape[len(shape)-2]), int(shape[len(shape)-1])
	data = data[4*batch*n*w:]
	rows := make([][]int32, n)
	for i := range rows {
		for j := range w {
			at := 4 * (i*w + j)
			rows[i] = append(rows[i],
				int32(uint32(data[at])|uint32(data[at+1])<<8|uint32(data[at+2])<<16|uint32(data[at+3])<<24))
		}
	}

	return rows
}

func openModel(t testing.TB, dir, dev string, o lm.Options) *lm.Model {
	t.Helper()
	d, err := device.Open(dev, device.Options{})
	if err != nil {
		t.Fatal(err)
	}

	m, err := lm.Load(context.Background(), dir, d, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { m.Close() })
	return m
}

func base(t testing.TB, m *lm.Model) kinds.Base {
	t.Helper()
	b, err := kinds.Of(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// farthest is the largest difference of two lists, and the largest magnitude of the second.
func farthest(got, want []float32) (gap, size float64) {
	if len(got) != len(want) {
		return math.Inf(1), 0
	}
	for i, w := range want {
		gap = max(gap, math.Abs(float64(got[i])-float64(w)))
		size = max(size, math.Abs(float64(w)))
	}
	return gap, size
}

func flat(m kernels.Mat) []float32 {
	var x []float32
	for i := range m.Rows {
		x = append(x, m.RowF32(i)...)
	}
	return x
}

// mosCase is the case.json of a Mixture of Shards.
type mosCase struct {
	Base    string
	Options mosOptions
	Counts  struct {
		Trainable int64
		Dead      int `json:"dead_public_rows_total"`
	}
	Exact bool               `json:"equals_base_exactly"`
	Noise map[string]float64 `json:"fp32_noise"`
}

type mosOptions struct {
	Alpha      float64
	E, R, L, P int
	Pair       *bool `json:"pair_dissociation"`
	Sampling   string
	Types      []string
}

func (o mosOptions) config() adapter.Config {
	return adapter.Config{
		Kind: adapter.MoS, Rank: o.R, Alpha: o.Alpha, Targets: adapter.Match{Names: o.Types},
		MoS: adapter.MoSConfig{
			EquivalentRank: o.E, Shards: o.L, Private: o.P,
			PairDissociation: o.Pair == nil || *o.Pair, Sampling: adapter.Sampling(o.Sampling),
		},
	}
}

// TestMoSOracle compares assembled factors bit by bit, logits, gradients and counts with the numbers of the
// published code.
func TestMoSOracle(t *testing.T) {
	root := oracle(t)
	for _, dir := range cases(t, filepath.Join(root, "mos")) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c mosCase
			readJSON(t, filepath.Join(dir, "case.json"), &c)
			m := openModel(t, filepath.Join(root, "base", c.Base), "cpu", lm.Options{})
			f := openTensors(t, filepath.Join(dir, "mos.safetensors"))
			inner, err := mosfile.Load(f.File, c.Options.config(), base(t, m))
			if err != nil {
				t.Fatal(err)
			}

			a := &Adapter{inner: inner}
			if a.Trainable() != c.Counts.Trainable || a.DeadShards() != c.Counts.Dead {
				t.Errorf("%d trained, %d dead; want %d and %d", a.Trainable(), a.DeadShards(), c.Counts.Trainable,
					c.Counts.Dead)
			}

			want := openTensors(t, filepath.Join(dir, "expected.safetensors"))
			checkFactors(t, inner, want)
			checkModel(t, m, a, want, c.Noise["logits"], c.Noise["grad_rel_to_max"], "grad.")
		})
	}
}

// checkFactors compares what is assembled with the oracle: copies, so bit by bit.
func checkFactors(t *testing.T, a *adapter.Adapter, want tensors) {
	t.Helper()

	for _, l := range a.Low {
		fa, fb := l.Pair()
		name := strings.Join([]string{"", itoa(l.Module.Block), mosType(l)}, ".")
		for side, m := range map[string]kernels.Mat{"A": fa, "B": fb} {
			if gap, _ := farthest(flat(m), want.floats(side+name)); gap != 0 {
				t.Errorf("%s%s differs by %g", side, name, gap)
			}
		}
	}
}

func mosType(l *adapter.Low) string { return l.Factors.(mos.Part).Type }

func itoa(n int) string { return string(rune('0' + n)) }

// checkModel compares logits, loss and gradients. The limits are the oracle's: ten times the noise of float32.
func checkModel(t *testing.T, m *lm.Model, a *Adapter, want tensors, noiseLogits, noiseGrad float64, prefix string) {
	t.Helper()
	ids, labels := want.ids("input_ids", 0), want.ids("labels", 0)
	undo, err := a.Attach(m)
	if err != nil {
		t.Fatal(err)
	}

	r, err := m.Forward(context.Background(), ids, lm.ForwardOptions{Logits: true, Labels: labels})
	if err != nil {
		t.Fatal(err)
	}

	if gap, _ := farthest(flat(r.Logits), want.floats("logits")); gap > max(2e-5, 10*noiseLogits) {
		t.Errorf("logits differ by %g", gap)
	}
	if gap := math.Abs(r.Loss - float64(want.floats("loss")[0])); gap > 1e-5 {
		t.Errorf("loss differs by %g", gap)
	}

	undo()
	_, grads, err := a.Gradients(context.Background(), m, ids, labels)
	if err != nil {
		t.Fatal(err)
	}

	seen := 0
	for _, g := range grads {
		name := prefix + strings.TrimPrefix(g.Name, "mos.")
		seen++
		gap, size := farthest(flat(g.Value), want.floats(name))
		if gap > max(2e-5, 10*noiseGrad)*max(size, 1e-30) && gap != 0 {
			t.Errorf("%s differs by %g of %g", name, gap, size)
		}
	}

	for _, n := range want.Names() {
		if strings.HasPrefix(n, "grad.") {
			seen--
		}
	}

	if seen != 0 {
		t.Errorf("%+d gradients", seen)
	}
}

// TestPEFTOracle compares logits and gradients of LoRA in all its variants with PEFT's.
func TestPEFTOracle(t *testing.T) {
	root := oracle(t)
	for _, dir := range cases(t, filepath.Join(root, "peft")) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c struct {
				Base      string
				Trainable int64              `json:"trainable_parameters"`
				Noise     map[string]float64 `json:"fp32_noise"`
			}

			readJSON(t, filepath.Join(dir, "case.json"), &c)
			m := openModel(t, filepath.Join(root, "base", c.Base), "cpu", lm.Options{})
			a, err := Open(dir, m)
			if err != nil {
				t.Fatal(err)
			}

			if a.Trainable() != c.Trainable {
				t.Errorf("%d trained, want %d", a.Trainable(), c.Trainable)
			}

			want := openTensors(t, filepath.Join(dir, "expected.safetensors"))
			checkModel(t, m, a, want, c.Noise["logits"], c.Noise["grad_rel_to_max"], "grad.")
		})
	}
}
