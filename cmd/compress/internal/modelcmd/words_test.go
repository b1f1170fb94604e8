package modelcmd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// TestFlagsOfGenerate: every number out of its range, and flags that need each other, are refused by name.
func TestFlagsOfGenerate(t *testing.T) {
	good := GenerateOptions{Prompted: true, GenerateOptions: lm.GenerateOptions{MaxTokens: 1, RepetitionPenalty: 1}}
	for want, change := range map[string]func(o *GenerateOptions){
		"":                                 func(*GenerateOptions) {},
		"--prompt is not given":            func(o *GenerateOptions) { o.Prompted = false },
		"--system is part of a chat":       func(o *GenerateOptions) { o.System = "x" },
		"--system: not valid UTF-8":        func(o *GenerateOptions) { o.System, o.Chat = "\xff", Terminal },
		"--prompt: not valid UTF-8":        func(o *GenerateOptions) { o.Prompt = "\xff" },
		"--max-tokens 0: want 1":           func(o *GenerateOptions) { o.MaxTokens = 0 },
		"--temperature -1: want":           func(o *GenerateOptions) { o.Temperature = -1 },
		"--temperature NaN":                func(o *GenerateOptions) { o.Temperature = math.NaN() },
		"--temperature +Inf":               func(o *GenerateOptions) { o.Temperature = math.Inf(1) },
		"--draft-tokens -1: want 1":        func(o *GenerateOptions) { o.Draft, o.DraftTokens = openmodel.Lookup, -1 },
		"--draft-tokens says how many":     func(o *GenerateOptions) { o.DraftTokens = 2 },
		"--top-k -1":                       func(o *GenerateOptions) { o.TopK = -1 },
		"--top-p 1.5: want 0 to 1":         func(o *GenerateOptions) { o.TopP = 1.5 },
		"--top-p NaN":                      func(o *GenerateOptions) { o.TopP = math.NaN() },
		"--min-p -0.5":                     func(o *GenerateOptions) { o.MinP = -.5 },
		"--repetition-penalty 0: want":     func(o *GenerateOptions) { o.RepetitionPenalty = 0 },
		"--repetition-penalty +Inf":        func(o *GenerateOptions) { o.RepetitionPenalty = math.Inf(1) },
		"(HINT: add --prompt TEXT, or --c": func(o *GenerateOptions) { o.Prompted, o.Prompt = false, "x" },
	} {
		o := good
		change(&o)
		err := o.Check()
		if want == "" && err != nil || want != "" && (!cli.IsUsage(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}

	chat := good
	chat.Prompted = false
	chat.Chat = "c.json"
	chat.System = "be brief"
	if err := chat.Check(); err != nil {
		t.Error(err)
	}
}

// TestLinesOfFiles: a line of JSON is a text in the forms that it may have, and a fault is told with file and line.
func TestLinesOfFiles(t *testing.T) {
	for line, want := range map[string]string{
		`"a\nb"`: "a\nb", `{"text": "x", "more": 1}`: "x", ` {"text": ""} `: "", `"\u00e9"`: "é",
	} {
		if got, err := jsonText(line, false); err != nil || got != want {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
	for line, want := range map[string]string{
		"": "a blank line", "  ": "a blank line", "5": "neither a JSON string",
		`{"texts": "x"}`: "neither a JSON string",
		`{"text": 5}`:    "cannot unmarshal", `"open`: "unexpected end", "[1]": "neither a JSON string",
		"\"\xff\"": "not valid UTF-8",
	} {
		if got, err := jsonText(line, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
	if got, err := jsonText("[1, 2]", true); err != nil || got != "[1, 2]" {
		t.Errorf("ids: %q, %v", got, err)
	}

	each := func(name, text string) (got []string, err error) {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		err = Texts{File: path}.Each(t.Context(), func(s string) error {
			if s == "stop" {
				return errors.New("enough")
			}
			got = append(got, s)
			return nil
		})
		return got, err
	}

	if got, err := each(
		"a.txt",
		"one\n\ntwo\r\nthree",
	); err != nil ||
		!slices.Equal(got, []string{"one", "", "two\r", "three"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := each("a.txt", ""); err != nil || got != nil {
		t.Errorf("%q, %v", got, err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"a.txt":   {"fine\n\xff\n", "a.txt: line 2: not valid UTF-8"},
		"b.jsonl": {"\"x\"\n\"y\"\n7\n", "b.jsonl: line 3: neither"},
		"c.txt":   {"one\nstop\nthree\n", "c.txt: line 2: enough"},
	} {
		if got, err := each(name, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if err := (Texts{Text: "\xff"}).Each(t.Context(), nil); err == nil || err.Error() != "--text: not valid UTF-8" {
		t.Error(err)
	}
	if err := (Texts{File: "/dev/zero"}).Each(
		t.Context(),
		nil,
	); err == nil ||
		!strings.Contains(err.Error(), "a device") {
		t.Error(err)
	}
}

// ids writes a file with one tensor.
func ids(t *testing.T, name string, d safetensors.DType, shape []int64, values ...int64) (*safetensors.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ids.safetensors")
	w, err := safetensors.Create(
		path,
		[]safetensors.Info{{Name: name, DType: d, Shape: shape}},
		nil,
		safetensors.Options{},
	)
	if err != nil {
		t.Fatal(err)
	}

	var data []byte
	for _, v := range values {
		if d == safetensors.I64 {
			data = binary.LittleEndian.AppendUint64(data, uint64(v))
		} else {
			data = binary.LittleEndian.AppendUint32(data, uint32(int32(v)))
		}
	}
	if err := errors.Join(w.WriteTensor(name, data), w.Finish()); err != nil {
		t.Fatal(err)
	}

	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

// TestIDsOfFiles: ids of both widths are read row by row, and what are none are told with tensor and place.
func TestIDsOfFiles(t *testing.T) {
	for _, d := range []safetensors.DType{safetensors.I64, safetensors.I32} {
		f, path := ids(t, "input_ids", d, []int64{2, 3}, 1, -100, 3, 4, math.MaxInt32, math.MinInt32)
		got, err := readIDs(f, path, "input_ids")
		if err != nil || fmt.Sprint(got) != "[[1 -100 3] [4 2147483647 -2147483648]]" {
			t.Errorf("%s: %v, %v", d, got, err)
		}
		if _, err := readIDs(f, path, "labels"); err == nil || !strings.Contains(err.Error(), `no tensor "labels"`) {
			t.Error(err)
		}
		if isForward(path) {
			t.Error("a file of ids is no output of forward")
		}
	}

	for _, c := range []struct {
		d      safetensors.DType
		shape  []int64
		values []int64
		want   string
	}{
		{safetensors.F32, []int64{1, 1}, []int64{0}, `tensor "x" is F32, want I64 or I32`},
		{safetensors.I32, []int64{2}, []int64{1, 2}, "has the shape [2], want [batch, length]"},
		{safetensors.I32, []int64{0, 3}, nil, "has the shape [0 3]"},
		{safetensors.I64, []int64{1, 2}, []int64{1, math.MaxInt32 + 1}, "element [0 1]: 2147483648 is not a token id"},
	} {
		f, path := ids(t, "x", c.d, c.shape, c.values...)
		if got, err := readIDs(f, path, "x"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %v; want %s", got, err, c.want)
		}
	}
}

// TestResultsInTheirPlaces: however sequences are divided into groups, what comes out for each lies where the sequence
// lay, and the loss is the mean over all that count.
func TestResultsInTheirPlaces(t *testing.T) {
	const length, cols = 2, 3
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "sequences")
		order := rapid.Permutation(seq(n)).Draw(t, "order")
		counts := rapid.SliceOfN(rapid.IntRange(0, 5), n, n).Draw(t, "counted")

		all := &lm.Result{LossPerToken: make([][]float64, n)}
		for rest := order; len(rest) > 0; {
			size := rapid.IntRange(1, len(rest)).Draw(t, "group")
			at := rest[:size]
			rest = rest[size:]

			logits := kernels.MatOf(kernels.WrapF32(make([]float32, size*length*cols)), size*length, cols)
			r := &lm.Result{Logits: logits, Hidden: []kernels.Mat{logits}}
			for k, i := range at {
				for p := range length {
					for c := range cols {
						logits.RowF32(k*length + p)[c] = float32(100*i + 10*p + c)
					}
				}
				r.LossPerToken = append(r.LossPerToken, []float64{float64(i)})
				r.Loss += float64(i * counts[i])
				r.Counted += counts[i]
			}
			if r.Counted > 0 {
				r.Loss /= float64(r.Counted)
			}

			join(all, r, at, length)
		}

		sum, counted := 0.0, 0
		for i := range n {
			sum += float64(i * counts[i])
			counted += counts[i]
			if all.LossPerToken[i][0] != float64(i) {
				t.Fatalf("loss of sequence %d: %v", i, all.LossPerToken[i])
			}
			for p := range length {
				want := []float32{float32(100*i + 10*p), float32(100*i + 10*p + 1), float32(100*i + 10*p + 2)}
				if !slices.Equal(all.Logits.RowF32(i*length+p), want) ||
					!slices.Equal(all.Hidden[0].RowF32(i*length+p), want) {
					t.Fatalf("sequence %d, position %d: %v", i, p, all.Logits.RowF32(i*length+p))
				}
			}
		}
		if all.Counted != counted || counted > 0 && math.Abs(all.Loss-sum/float64(counted)) > 1e-12 {
			t.Fatalf("a loss of %g over %d, want %g over %d", all.Loss, all.Counted, sum, counted)
		}
	})
}

func seq(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// TestInspectionInWords: what a checkpoint holds, to the letter, with what could not be counted said instead of a
// number.
func TestInspectionInWords(t *testing.T) {
	half, zeros := .5, int64(7)
	r := &checkpoint.Inspection{
		Path:         "m",
		Architecture: "llama",
		Blocks:       2,
		Hidden:       8,
		Heads:        4,
		KVHeads:      2,
		Vocabulary:   100,
		Parameters:   1234567,
		Tensors:      3,
		Bytes:        2_469_134,
		Files:        []string{"a", "b"},
		Sparsity:     &half,
		Verified:     []string{"shapes", "values"},
		Roles: []*checkpoint.RoleReport{
			{
				Role:     "q",
				Tensors:  2,
				Elements: 64,
				DType:    "BF16",
				Sparsity: &half,
			},
			{Role: "embed", Tensors: 1, Elements: 800, DType: "I4"},
		},
		List: []checkpoint.TensorReport{
			{Name: "w", DType: "BF16", Shape: []int64{8, 4}, Role: "q", Zeros: &zeros, NonFinite: "[0 1]"},
			{Name: "e.0", DType: "I4", Shape: []int64{100, 8}, Role: "embed", Stored: "experts"},
		},
		Unknown:   []string{"rope"},
		Uncounted: []string{"I4"},
		Remarks:   []string{"finding"},
	}

	out, said := clitest.Show(t, func(j *cli.Job) { printInspection(j, r, true, true) })
	want := `m: llama, 2 blocks, hidden 8, 4 heads (2 key/value), vocabulary 100
1,234,567 parameters, 3 tensors, 2.47 MB in 2 file(s)
role   tensors  parameters  dtype      zeros %
──────────────────────────────────────────────
q            2          64  BF16   50.00
embed        1         800  I4     not counted
zeros in the matrices of the blocks: 50.00 %
tensor  dtype  shape    role         zeros  not finite
──────────────────────────────────────────────────────
w       BF16   [8 4]    q      7            [0 1]
e.0     I4     [100 8]  embed  not counted
verified: shapes, values
`
	if clean(out) != clean(want) {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}
	if said != "the experts of a block lie in one tensor: e.0 in experts\n"+
		"config.json: the key \"rope\" is unknown and has no effect\n"+
		"zeros of I4 tensors are not counted: the format does not say how their bits are packed\nfinding\n" {
		t.Errorf("%s", said)
	}

	r.Architecture = ""
	r.Note = "no config.json"
	r.Sparsity = nil
	r.Verified = nil
	out, _ = clitest.Show(t, func(j *cli.Job) { printInspection(j, r, false, false) })
	if !strings.Contains(out, "no config.json; its tensors are shown without roles\n") ||
		strings.Contains(out, "zeros") {
		t.Errorf("%s", out)
	}
	if got := zerosNote(r); got != "zeros in all tensors: not counted" {
		t.Error(got)
	}
}

// clean is a table without the widths of its columns.
func clean(table string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(table, "─", "")), " ")
}

// TestDifferencesInWords: tensors that differ have a row, those of one side a line, and all of both sides are counted.
func TestDifferencesInWords(t *testing.T) {
	largest, relative := .5, .25
	r := &checkpoint.Difference{
		A: "a", B: "b", Same: 5, OnlyA: []string{"x\x1b[2J"}, OnlyB: []string{"y", "z"},
		Tensors: []checkpoint.TensorDiff{
			{Name: "w", Compared: true, Changed: 1, Elements: 8, MaxAbs: &largest, Relative: &relative},
			{Name: "shape", Form: "[2] and [3]"},
			{Name: "none", Compared: true, Form: "F32 and BF16"},
		},
	}

	out, _ := clitest.Show(t, func(j *cli.Job) { printDiff(j, r, false) })
	want := `tensor    changed %  largest  relative  form
─────────────────────────────────────────────────
w       12.50            0.5      0.25
shape   other shape                     [2] and [3]
none    0.00                            F32 and BF16
only in a: "x\x1b[2J"
only in b: y
only in b: z
3 tensors differ, in 12.50 % of the 8 values compared; the largest difference is 0.5, in w
5 of 11 tensors are equal
`
	if clean(out) != clean(want) {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}

	out, _ = clitest.Show(t, func(j *cli.Job) { printDiff(j, &checkpoint.Difference{Same: 3}, false) })
	if out != "3 of 3 tensors are equal\n" {
		t.Errorf("%s", out)
	}
}

// TestPulls: names and numbers that no hub takes are refused before it is asked, and what there is to do is said.
func TestPulls(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		want string
	}{
		{"owner/name", 1, ""},
		{"owner/name@main", mostAtOnce, ""},
		{"name", 1, "is no name of a model"},
		{"a/b/c", 1, "is no name of a model"},
		{strings.Repeat("x", 500), 1, "want owner/name"},
		{"owner/name", 0, "--parallel 0: want 1 to 32"},
		{"owner/name", 33, "--parallel 33"},
	} {
		err := CheckPull(c.name, PullOptions{AtOnce: c.n})
		if c.want == "" && err != nil ||
			c.want != "" && (!cli.IsUsage(err) || !strings.Contains(err.Error(), c.want) ||
				len(err.Error()) > 320) {
			t.Errorf("%.20s, %d: %v", c.name, c.n, err)
		}
	}

	r := &pullReport{
		Model:    "o/n",
		Commit:   "0123456789abcdef",
		Skipped:  2,
		Estimate: hub.Estimate{Files: 3, Bytes: 5e9, Present: 1e9, Free: 7e9},
	}
	_, said := clitest.Show(t, func(j *cli.Job) { r.announce(j) })
	if said != "o/n at 0123456789ab: 3 files, 5 GB, of which 1 GB are there already; 7 GB free on the disk; 2 other "+
		"files are left out (--include '*' takes all)\n" {
		t.Errorf("%s", said)
	}
	r.Skipped, r.Estimate.Free = 0, -1
	if _, said := clitest.Show(
		t,
		func(j *cli.Job) { r.announce(j) },
	); !strings.HasSuffix(
		said,
		" are there already\n",
	) {
		t.Errorf("%s", said)
	}
}
