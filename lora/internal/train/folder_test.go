package train

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// names lists what is in a folder.
func names(t *testing.T, f Folder) []string {
	t.Helper()
	list, err := os.ReadDir(string(f))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func touch(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := os.WriteFile(p, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLatest: the newest state is the one after most steps, by number and not by name; what is called otherwise is
// none.
func TestLatest(t *testing.T) {
	f := Folder(t.TempDir())
	if path, n, err := f.Latest(); path != "" || n != 0 || err != nil {
		t.Errorf("of an empty folder: %q, %d, %v", path, n, err)
	}
	if path, n, err := Folder(filepath.Join(string(f), "none")).Latest(); path != "" || n != 0 || err != nil {
		t.Errorf("of no folder: %q, %d, %v", path, n, err)
	}

	touch(t, f.State(7), f.State(100000001), f.State(20), f.Best())
	for _, n := range []string{"state-00000099", "state-x.safetensors", "astate-00000098.safetensors", "halted"} {
		touch(t, filepath.Join(string(f), n))
	}

	path, n, err := f.Latest()
	if err != nil || n != 100000001 || path != f.State(n) {
		t.Errorf("%q, %d, %v", path, n, err)
	}
	if !f.Has(7) || f.Has(8) {
		t.Error("what is there is not known")
	}
}

// TestPrune: of the states only those that are named stay; other files are left alone.
func TestPrune(t *testing.T) {
	f := Folder(t.TempDir())
	touch(t, f.State(1), f.State(2), f.State(3), f.Best(), filepath.Join(string(f), "notes"))
	if err := f.Prune(2, 9); err != nil {
		t.Fatal(err)
	}

	want := []string{filepath.Base(f.Best()), "notes", filepath.Base(f.State(2))}
	if got := names(t, f); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := Folder(filepath.Join(string(f), "none")).Prune(); err == nil {
		t.Error("a folder that is not there is pruned")
	}
}

// TestOpen: a run that goes on finds what the earlier one has left; a new one begins with an empty folder.
func TestOpen(t *testing.T) {
	f := Folder(filepath.Join(t.TempDir(), "a", "b"))
	if err := f.Open(false); err != nil {
		t.Fatal(err)
	}

	touch(t, f.State(4), f.Best())
	if err := f.Halt(errors.New("why")); err != nil {
		t.Fatal(err)
	}
	if err := f.Open(true); err != nil || !f.Has(4) || !f.Halted() {
		t.Errorf("%v; %q", err, names(t, f))
	}

	if err := f.GoOn(); err != nil || f.Halted() {
		t.Errorf("still halted, %v", err)
	}
	if err := f.GoOn(); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := f.Open(false); err != nil || len(names(t, f)) > 0 {
		t.Errorf("%v; %q", err, names(t, f))
	}
}

// TestEntries: what is written comes back by name, whatever the order; a tensor of another length is refused.
func TestEntries(t *testing.T) {
	path := Folder(t.TempDir()).State(1)
	a := &adapter.Adapter{Whole: []*adapter.Whole{{Value: adapter.NewParam("w", 2, 3)}}}
	for i := range a.Whole[0].Value.Data() {
		a.Whole[0].Value.Data()[i] = float32(i) / 7
	}

	state := map[string][]float32{"m.w": {1, 2}, "v.w": {float32(math.Inf(1)), -0}, "step": {3}}
	if err := writeState(path, append(paramEntries(a), optimizerEntries(state)...), steps{Step: 5}); err != nil {
		t.Fatal(err)
	}

	var p steps
	file, err := readState(path, &p)
	if err != nil || p.Step != 5 {
		t.Fatalf("%+v, %v", p, err)
	}
	defer file.Close()

	back, err := optimizerState(file)
	if err != nil || len(back) != len(state) {
		t.Fatalf("%v, %v", back, err)
	}
	for name, want := range state {
		if !slices.Equal(back[name], want) {
			t.Errorf("%s: %v, want %v", name, back[name], want)
		}
	}

	got := make([]float32, 6)
	if err := fillFrom(file, "w", got); err != nil || !slices.Equal(got, a.Whole[0].Value.Data()) {
		t.Errorf("%v, %v", got, err)
	}
	for what, err := range map[string]error{
		"shorter": fillFrom(file, "w", got[:5]), "missing": fillFrom(file, "x", got),
	} {
		if !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFinite: a number that training cannot go on with is named.
func TestFinite(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		err := Finite("the loss", x)
		if !errors.Is(err, lm.ErrNonFinite) || !strings.Contains(err.Error(), "the loss") {
			t.Errorf("%g: %v", x, err)
		}
	}
	if err := Finite("the loss", 1e308); err != nil {
		t.Error(err)
	}
}

// TestCollect: the first gradient of a step replaces what was there, further ones are added.
func TestCollect(t *testing.T) {
	g := func(v ...float32) kernels.Mat { return kernels.MatOf(kernels.WrapF32(v), 2, 2) }
	v := &value{host: g(0, 0, 0, 0)}
	v.collect(g(1, 2, 3, 4))
	v.filled = true
	v.collect(g(10, 20, 30, 40))
	if want := []float32{11, 22, 33, 44}; !slices.Equal(v.grad.Buf.F32(), want) {
		t.Errorf("%v, want %v", v.grad.Buf.F32(), want)
	}

	v.filled = false // the next step
	v.collect(g(5, 6, 7, 8))
	if want := []float32{5, 6, 7, 8}; !slices.Equal(v.grad.Buf.F32(), want) {
		t.Errorf("%v, want %v", v.grad.Buf.F32(), want)
	}
}
