package quantize

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/quantize/imatrix"
)

func fileOptions(t testing.TB, scheme string) FileOptions {
	t.Helper()
	s, err := SchemeByName(scheme)
	if err != nil {
		t.Fatal(err)
	}
	return FileOptions{Scheme: s, Out: filepath.Join(t.TempDir(), "out.gguf"), Threads: 2}
}

// TestFile: files of every mixture open as the model that they were made of: all tensors, values that are near, the
// same tokens; bytes do not depend on the number of threads.
func TestFile(t *testing.T) {
	dense, err := weights.Open(ctx, nano)
	if err != nil {
		t.Fatal(err)
	}
	defer dense.Close()

	m := open(t, nano, 2)
	w := calibration(t, m, 2, 64)
	before := losses(t, m, w.IDs)
	importance, err := Importance(ctx, m, w, "calib.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Schemes() {
		if !s.File() {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			o := fileOptions(t, s.Name)
			if s.Name == "q2_k_s" {
				if _, err := File(ctx, nano, o); !errors.Is(err, ErrOptions) {
					t.Errorf("without an importance matrix: %v", err)
				}
				o.Importance = importance
			}
			r, err := File(ctx, nano, o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Total.Tensors != len(dense.Names()) {
				t.Errorf("%d tensors, want %d", r.Total.Tensors, len(dense.Names()))
			}

			got, err := weights.Open(ctx, o.Out)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			if !slices.Equal(slices.Sorted(slices.Values(got.Names())), slices.Sorted(slices.Values(dense.Names()))) {
				t.Errorf("tensors %v", got.Names())
			}
			// Two bits leave little of so small a model; what is asked is that it is the same model.
			if loss := losses(t, open(t, o.Out, 2), w.IDs); loss-before > 0.35*before || before-loss > 0.1*before {
				t.Errorf("a loss of %g, of the dense model %g", loss, before)
			}

			one := fileOptions(t, s.Name)
			one.Threads = 1
			one.Importance = o.Importance
			if _, err := File(ctx, nano, one); err != nil {
				t.Fatal(err)
			}
			if !same(t, o.Out, one.Out) {
				t.Error("other bytes with one thread")
			}
		})
	}
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(x) == string(y)
}

// TestFileTypes: rules give tensors their types, the last one that names a tensor counts, and rules that name nothing,
// or rows that blocks do not divide, are errors.
func TestFileTypes(t *testing.T) {
	o := fileOptions(t, "q8_0")
	o.Types = []TypeRule{{"blk.*.ffn_down.weight", "q5_1"}, {"blk.2.ffn_*.weight", "f16"}}
	if _, err := File(ctx, nano, o); err != nil {
		t.Fatal(err)
	}

	f, err := gguf.Open(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, want := range map[string]gguf.Type{
		"blk.0.ffn_down.weight": gguf.Q5_1, "blk.2.ffn_down.weight": gguf.F16, "blk.2.ffn_up.weight": gguf.F16,
		"blk.0.ffn_up.weight": gguf.Q8_0, "blk.0.attn_norm.weight": gguf.F32,
	} {
		if info, _ := f.Info(name); info.Type != want {
			t.Errorf("%s is %v, want %v", name, info.Type, want)
		}
	}

	for _, c := range []struct {
		rule TypeRule
		want error
	}{
		{TypeRule{"blk.9.*", "q8_0"}, ErrOptions},
		{TypeRule{"blk.*", "q9"}, ErrOptions},
		{TypeRule{"[a", "q8_0"}, ErrOptions},
		{TypeRule{"blk.0.attn_q.weight", "q4_k"}, ErrLayout},
		{TypeRule{"", "q8_0"}, ErrOptions},
	} {
		bad := fileOptions(t, "q8_0")
		bad.Types = []TypeRule{c.rule}
		if _, err := File(ctx, nano, bad); !errors.Is(err, c.want) {
			t.Errorf("%v: %v", c.rule, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(bad.Out)); len(left) > 0 {
			t.Errorf("%v: it left %v", c.rule, left)
		}
	}
}

// TestFileResume: an interrupted run leaves no file of the name, and is continued to the same bytes; one of other
// options is refused, and what is there is not replaced unasked.
func TestFileResume(t *testing.T) {
	want := fileOptions(t, "q5_0")
	if _, err := File(ctx, nano, want); err != nil {
		t.Fatal(err)
	}

	for _, part := range []int64{1, 4, 9} {
		o := fileOptions(t, "q5_0")
		stop, cancel := context.WithCancel(ctx)
		o.Progress = func(done, of int64) {
			if done > of*part/10 {
				cancel()
			}
		}
		if _, err := File(stop, nano, o); !errors.Is(err, context.Canceled) {
			t.Fatalf("%v", err)
		}
		if _, err := os.Stat(o.Out); err == nil {
			t.Error("there is an output")
		}

		other := fileOptions(t, "q8_0")
		other.Out = o.Out
		other.Resume = true
		if _, err := File(ctx, nano, other); !errors.Is(err, stage.ErrOtherJob) {
			t.Errorf("%v", err)
		}

		anew := int64(0)
		o.Progress = func(done, _ int64) { anew = max(anew, done) }
		o.Resume = true
		if _, err := File(ctx, nano, o); err != nil {
			t.Fatal(err)
		}
		if !same(t, o.Out, want.Out) {
			t.Errorf("%d tenths: other bytes", part)
		}
		if part > 1 && anew > 400_000 {
			t.Errorf("%d tenths: %d values were written again", part, anew)
		}

		r, err := File(ctx, nano, o)
		if err != nil || !r.Finished || r.Total.Tensors == 0 || !same(t, o.Out, want.Out) {
			t.Errorf("a finished file is not taken as one: %v", err)
		}
		other.Out = o.Out
		if _, err := File(ctx, nano, other); !errors.Is(err, stage.ErrExists) {
			t.Errorf("%v", err)
		}
		o.Resume = false
		if _, err := File(ctx, nano, o); !errors.Is(err, stage.ErrExists) {
			t.Errorf("%v", err)
		}
		o.Overwrite = true
		o.Scheme, _ = SchemeByName("q8_0")
		if _, err := File(ctx, nano, o); err != nil || same(t, o.Out, want.Out) {
			t.Errorf("%v", err)
		}
		if left, _ := os.ReadDir(filepath.Dir(o.Out)); len(left) != 1 {
			t.Errorf("it left %v", left)
		}
	}
}

// TestImportanceOracle: the sums are those of llama-imatrix on the same text, to what it loses by halving the mantissas
// of activations and of its cache: 1 % of the largest of a matrix.
func TestImportanceOracle(t *testing.T) {
	want, err := imatrix.Read("imatrix/testdata/nano.gguf")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("imatrix/testdata/text.txt")
	if err != nil {
		t.Fatal(err)
	}

	m := open(t, nano, 2)
	tok, err := tokenizer.Load(nano)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), tokenizer.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := corpus.Windows{SeqLen: 128}
	for i := range 4 {
		w.IDs = append(w.IDs, ids[i*128:][:128])
	}
	if begins, err := Beginnings(ctx, m, &w); begins || err != nil {
		t.Fatalf("%t, %v", begins, err)
	}

	got, err := Importance(ctx, m, w, "text.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Entries) != len(want.Entries) || got.Chunks != want.Chunks || got.ChunkSize != want.ChunkSize {
		t.Fatalf("%d entries, %d chunks of %d", len(got.Entries), got.Chunks, got.ChunkSize)
	}
	for i, e := range got.Entries {
		o := want.Entries[i]
		if e.Name != o.Name || !slices.Equal(e.Counts, o.Counts) {
			t.Fatalf("%s %v, want %s %v", e.Name, e.Counts, o.Name, o.Counts)
		}
		largest := slices.Max(o.Sums)
		for j, v := range e.Sums {
			if d := v - o.Sums[j]; max(d, -d) > 0.01*largest {
				t.Fatalf("%s, input %d: %g, want %g", e.Name, j, v, o.Sums[j])
			}
		}
	}
}

// TestImportance: an importance matrix lowers the errors that it weighs, and the file says where it came from; one of
// another model is refused.
func TestImportance(t *testing.T) {
	m := open(t, nano, 2)
	w := calibration(t, m, 16, 64)
	f, err := Importance(ctx, m, w, "calib.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Entries) != 28 || f.Chunks != 16 || f.ChunkSize != 64 || f.Entries[0].Count(0) != 16*64 {
		t.Fatalf("%d entries, %d chunks, counts %v", len(f.Entries), f.Chunks, f.Entries[0].Counts)
	}

	plain := fileOptions(t, "q4_0")
	if _, err := File(ctx, nano, plain); err != nil {
		t.Fatal(err)
	}
	weighted := fileOptions(t, "q4_0")
	weighted.Importance = f
	weighted.Imatrix = "some/nano.imatrix.gguf"
	r, err := File(ctx, nano, weighted)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, one := range r.Tensors {
		if one.Weighted {
			n++
		}
	}
	if n != 28 {
		t.Errorf("%d tensors are weighted", n)
	}

	// What the importance weighs is less: the squared errors of columns by how strong their inputs are.
	better := 0
	for _, e := range f.Entries {
		if weightedError(t, weighted.Out, e) < weightedError(t, plain.Out, e) {
			better++
		}
	}
	if better < 26 {
		t.Errorf("%d of 28 matrices err less where it counts", better)
	}

	file, err := gguf.Open(weighted.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if v, _ := file.Metadata().Get("quantize.imatrix.file"); v.String() != `"nano.imatrix.gguf"` {
		t.Errorf("quantize.imatrix.file is %v", v)
	}

	for name, change := range map[string]func(e *imatrix.Entry){
		"names":  func(e *imatrix.Entry) { e.Name = strings.Replace(e.Name, "blk", "block", 1) },
		"inputs": func(e *imatrix.Entry) { e.Inputs = 32; e.Sums = e.Sums[:32] },
	} {
		other := *f
		other.Entries = slices.Clone(f.Entries)
		for i := range other.Entries {
			change(&other.Entries[i])
		}
		bad := fileOptions(t, "q4_0")
		bad.Importance = &other
		if _, err := File(ctx, nano, bad); !errors.Is(err, imatrix.ErrOther) {
			t.Errorf("other %s: %v", name, err)
		}
	}

	// nano's rows are made of blocks of 256 in the second matrices of its MLPs alone; one is left out.
	short := *f
	short.Entries = slices.DeleteFunc(slices.Clone(f.Entries), func(e imatrix.Entry) bool {
		return e.Name == "blk.2.ffn_down.weight"
	})
	bad := fileOptions(t, "q2_k_s")
	bad.Importance = &short
	if _, err := File(ctx, nano, bad); !errors.Is(err, imatrix.ErrOther) ||
		!strings.Contains(err.Error(), "blk.2.ffn_down.weight") {
		t.Errorf("a matrix that is left out: %v", err)
	}
}

// weightedError is the error of a matrix of a file beside the same in F32, by the importance of its columns.
func weightedError(t *testing.T, path string, e imatrix.Entry) (sum float64) {
	t.Helper()
	exact := fileOptions(t, "f32")
	if _, err := File(ctx, nano, exact); err != nil {
		t.Fatal(err)
	}
	a, b := tensorOf(t, path, e.Name), tensorOf(t, exact.Out, e.Name)
	importance := e.Importance(0)
	for i, v := range a {
		d := float64(v - b[i])
		sum += float64(importance[i%e.Inputs]) * d * d
	}
	return sum
}

func tensorOf(t *testing.T, path, name string) []float32 {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, ok := f.Info(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	data, err := f.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(1)
	for _, d := range info.Shape {
		n *= d
	}
	out := make([]float32, n)
	if err := info.Type.Decode(out, data); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFileNotes: what a mixture's name does not tell is said: types that rows made necessary, a mixture without
// experts, and what an importance matrix leaves out or has as nothing.
func TestFileNotes(t *testing.T) {
	m := open(t, nano, 2)
	f, err := Importance(ctx, m, calibration(t, m, 2, 32), "calib.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Trailing = 3
	f.Entries = slices.DeleteFunc(f.Entries, func(e imatrix.Entry) bool { return e.Name == "blk.2.attn_q.weight" })
	e, _ := f.Entry("blk.1.ffn_up.weight")
	clear(e.Sums)

	for _, c := range []struct {
		scheme string
		with   *imatrix.File
		want   []string
	}{
		{"q4_k_m", nil, []string{"22 matrices got Q5_0 instead of Q4_K, since blocks of 256 do not divide their rows"}},
		{"mxfp4", nil, []string{"no matrix is MXFP4: mxfp4 gives it to the experts of mixtures"}},
		{"q8_0", nil, nil},
		{"q4_0", f, []string{
			`1 matrix without an entry in the importance matrix, rounded alone; the first is "blk.2.attn_q.weight"`,
			`1 matrix with an importance of 0 throughout`, "3 bytes at the end",
		}},
	} {
		o := fileOptions(t, c.scheme)
		o.Importance = c.with
		r, err := File(ctx, nano, o)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(r.Notes, "\n")
		for _, want := range c.want {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: %s, want %q", c.scheme, notes, want)
			}
		}
		if c.want == nil && notes != "" {
			t.Errorf("%s: %s", c.scheme, notes)
		}
		if r.Total.BytesIn < 2*r.Total.Weights { // BF16
			t.Errorf("%s: %d bytes of %d weights before", c.scheme, r.Total.BytesIn, r.Total.Weights)
		}
		if c.with != nil && slices.ContainsFunc(tensorOf(t, o.Out, e.Name), func(v float32) bool { return v != 0 }) {
			t.Error("a matrix without importance is not 0")
		}
	}
}

// TestLikelySchemes: a scheme in other letters, or the beginning of some, is asked about.
func TestLikelySchemes(t *testing.T) {
	for name, want := range map[string]string{
		"Q4_K_M": "did you mean q4_k_m?", "q4_k": "did you mean q4_k_s or q4_k_m?", "W8A8": "did you mean w8a8?",
	} {
		if _, err := SchemeByName(name); !errors.Is(err, ErrScheme) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	if _, err := SchemeByName("x"); strings.Contains(err.Error(), "did you mean") || failure.Hint(err) != "" {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"AWQ", "hqq", "nf4", "GGUF", "4bit", "int4", "Q4", "8bit", "int8", "q8"} {
		_, err := SchemeByName(name)
		hint := failure.Hint(err)
		if !errors.Is(err, ErrScheme) || hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range regexp.MustCompile(`--to (\S+?),? `).FindAllStringSubmatch(hint+" ", -1) {
			if _, err := SchemeByName(m[1]); err != nil {
				t.Errorf("the hint of %s: %v", name, err)
			}
		}
	}
}
