package edit

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

const nano = "../../testdata/nano"

// bench is the shipped model with its edits.
type bench struct {
	m       *lm.Model
	x       *Encoder
	records []Record
	encoded []Encoded
	stats   *Statistics
	texts   [][]int32
}

func newBench(t *testing.T, n int) *bench {
	t.Helper()
	m, err := lm.Load(context.Background(), nano+"/base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = m.Close() })
	tok, err := tokenizer.Load(nano + "/base")
	if err != nil {
		t.Fatal(err)
	}

	set, err := Read(nano + "/edits.json")
	if err != nil {
		t.Fatal(err)
	}

	hp, err := Defaults("memit", m.Config())
	if err != nil {
		t.Fatal(err)
	}

	b := &bench{m: m, x: &Encoder{Tokenizer: tok, Templates: hp.Templates}, records: set.Records[:n]}
	var docs [][]int32
	for i := range set.Records {
		r := &set.Records[i]
		for _, text := range append(append([]string{r.Full() + " " + r.True}, r.Near...), r.Rephrase...) {
			ids, err := b.x.Document(text, 512)
			if err != nil {
				t.Fatal(err)
			}
			docs = append(docs, ids)
		}
	}

	b.texts = BackgroundOf(docs)
	for i := range b.records {
		e, err := b.x.Record(&b.records[i])
		if err != nil {
			t.Fatal(err)
		}
		b.encoded = append(b.encoded, e)
	}

	if b.stats, err = Collect(context.Background(), m, docs, []int{0, 1, 2, 3}, nil); err != nil {
		t.Fatal(err)
	}

	return b
}

// bytesOf are the stored bytes of all matrices.
func (b *bench) bytesOf(t *testing.T) []byte {
	t.Helper()
	var out []byte
	for k := range b.m.Blocks() {
		for _, l := range b.m.Linears(k) {
			p, err := b.m.Param(l.Name)
			if err != nil {
				t.Fatal(err)
			}

			out = append(out, p.Buf.Bytes()...)
		}
	}

	return out
}

// Every method: steps, the sum of deltas, undo to every state byte for byte, in memory and through a journal.
func TestUndo(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 3)
	for _, name := range Methods() {
		hp, err := Defaults(name, b.m.Config())
		if err != nil {
			t.Fatal(err)
		}

		hp.Steps = 4
		if name == "ultraedit" {
			hp.LearningRate = 1e-3
		}
		o := Options{Method: name, HParams: &hp, Statistics: b.stats, Background: b.texts}
		e, err := New(b.m, o)
		if err != nil {
			t.Fatal(err)
		}

		states := [][]byte{b.bytesOf(t)}
		for i := range b.encoded {
			if _, err := e.Apply(ctx, b.encoded[i:i+1], []string{b.records[i].Full()}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			states = append(states, b.bytesOf(t))
		}

		beside := []string{"grace", "wise", "memoir", "ike"}
		if changed := !bytes.Equal(states[0], states[3]); changed == slices.Contains(beside, name) {
			t.Errorf("%s: weights changed: %v", name, changed)
		}
		// Elements of BF16 are rounded by half a unit of 2⁻⁸ of themselves, whatever the delta is.
		if sum, err := e.CheckSum(); err != nil || sum > 0.5 {
			t.Errorf("%s: sum of deltas is off by %g: %v", name, sum, err)
		}

		b.journal(t, e, o, states)

		for n := 2; n >= 0; n-- {
			if err := e.Undo(n); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !bytes.Equal(b.bytesOf(t), states[n]) {
				t.Errorf("%s: undo to %d differs", name, n)
			}
		}

		e.Close()
	}
}

// journal writes, reads and continues a journal, and damages it.
func (b *bench) journal(t *testing.T, e *Editing, o Options, states [][]byte) {
	t.Helper()
	var text bytes.Buffer
	if err := e.WriteJournal(&text, "model", ""); err != nil {
		t.Fatal(err)
	}

	e.Close()
	j, err := ReadJournal(bytes.NewReader(text.Bytes()))
	if err != nil {
		t.Fatal(err)
	}

	again, err := Open(b.m, j, true, o)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()

	if !bytes.Equal(b.bytesOf(t), states[3]) || len(again.Steps()) != 3 {
		t.Errorf("%s: the journal's model differs", o.Method)
	}

	var second bytes.Buffer
	if err := again.WriteJournal(&second, "model", ""); err != nil || !bytes.Equal(text.Bytes(), second.Bytes()) {
		t.Errorf("%s: a journal that is read and written differs: %v", o.Method, err)
	}

	for _, cut := range []int{0, 10, text.Len() / 2, text.Len() - 1} {
		if _, err := ReadJournal(bytes.NewReader(text.Bytes()[:cut])); !errors.Is(err, ErrJournal) {
			t.Errorf("%s: a journal cut at %d: %v", o.Method, cut, err)
		}
	}

	broken := bytes.Clone(text.Bytes())
	broken[text.Len()/2] ^= 1
	if _, err := ReadJournal(bytes.NewReader(broken)); !errors.Is(err, ErrJournal) {
		t.Errorf("%s: a damaged journal: %v", o.Method, err)
	}
}

// ROME's identities: the edited matrix gives v* at the bare key, the change has rank one, and keys orthogonal
// to u give what they gave.
func TestIdentities(t *testing.T) {
	b := newBench(t, 2)
	for _, stats := range []bool{false, true} {
		hp, _ := Defaults("rome", b.m.Config())
		hp.Steps, hp.Statistics = 6, stats
		e, err := New(b.m, Options{Method: "rome", HParams: &hp, Statistics: b.stats})
		if err != nil {
			t.Fatal(err)
		}

		s, err := site.Look(context.Background(), b.m, places(b.encoded[:1]), hp.Layers)
		if err != nil {
			t.Fatal(err)
		}

		block := hp.Layers[0]
		step, err := e.Apply(context.Background(), b.encoded[:1], nil)
		if err != nil {
			t.Fatal(err)
		}

		d := &step.Deltas[0]
		if r := d.Norms.Rank; math.Abs(r-1) > 1e-9 {
			t.Errorf("effective rank %g", r)
		}

		k := s.Keys[block].Row(0)
		change := linalg.New(1, d.left.Rows)
		linalg.Solver{}.Mul(change, linalg.Of(k, 1, len(k)), d.written(), linalg.Product{TransB: true})
		r := site.Row(d.left.T(), 0)
		want := site.Scaled(site.Dot(k, site.Row(d.right.T(), 0)), r)
		near(t, "W·k0", change.Data, want, 1e-12)
		if err := e.Undo(0); err != nil {
			t.Fatal(err)
		}
	}

	b.woodbury(t)
}

// woodbury compares MEMIT's small solve with the direct one, and AlphaEdit's change with what it must leave alone.
func (b *bench) woodbury(t *testing.T) {
	hp, _ := Defaults("memit", b.m.Config())
	hp.Lambda = 3
	block := hp.Layers[0]
	c := linalg.Matrix(b.stats.Moments[block]).Clone()
	for i := range c.Rows {
		c.Set(i, i, c.At(i, i)+0.01)
	}

	e, err := New(b.m,
		Options{Method: "memit", HParams: &hp, Statistics: &Statistics{Moments: map[int]Matrix{block: Matrix(c)}}})
	if err != nil {
		t.Fatal(err)
	}

	s, err := site.Look(context.Background(), b.m, places(b.encoded), hp.Layers)
	if err != nil {
		t.Fatal(err)
	}

	keys := s.Keys[block].Sub(0, 3, 0, s.Keys[block].Cols).Clone()
	got, err := e.shares(block, keys)
	if err != nil {
		t.Fatal(err)
	}

	a := c.Clone()
	a.Scale(hp.Lambda)
	linalg.Solver{}.Mul(a, keys, keys, linalg.Product{TransA: true, Accumulate: true})
	x := keys.T()
	if err := (linalg.Solver{}).Cholesky(a, false); err != nil {
		t.Fatal(err)
	}
	if err := (linalg.Solver{}).CholeskySolve(a, x, false); err != nil {
		t.Fatal(err)
	}

	near(t, "Woodbury", got.Data, x.T().Data, 1e-6) // the direct solve has the condition of λC
	alpha, err := New(b.m, Options{Method: "alphaedit", Statistics: b.stats})
	if err != nil {
		t.Fatal(err)
	}

	kept, err := alpha.shares(block, keys)
	if err != nil {
		t.Fatal(err)
	}

	values, v, err := linalg.Solver{}.SymEigen(linalg.Matrix(b.stats.Moments[block]))
	if err != nil {
		t.Fatal(err)
	}

	top := v.Sub(0, v.Rows, len(values)-1, len(values)).Clone()
	moved := linalg.New(kept.Rows, 1)
	linalg.Solver{}.Mul(moved, kept, top, linalg.Product{})
	if moved.Norm() > 1e-10*kept.Norm() {
		t.Errorf("AlphaEdit moves the largest direction by %g of %g", moved.Norm(), kept.Norm())
	}
}

// An optimisation that diverges is an error, and the model stays as it was.
func TestDiverged(t *testing.T) {
	b := newBench(t, 1)
	before := b.bytesOf(t)
	for _, name := range []string{"ft", "rome", "memit"} {
		hp, _ := Defaults(name, b.m.Config())
		hp.LearningRate, hp.Clamp = 1e39, 1e200 // beyond float32
		e, err := New(b.m, Options{Method: name, HParams: &hp, Statistics: b.stats})
		if err != nil {
			t.Fatal(err)
		}

		if _, err := e.Apply(context.Background(), b.encoded, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !bytes.Equal(before, b.bytesOf(t)) {
			t.Errorf("%s: the model changed", name)
		}
	}
}

// TestMerge: a text without keys changes nothing, and counts are whole numbers.
func TestMerge(t *testing.T) {
	m := &lm.Config{Layers: 4}
	want, err := Defaults("memit", m)
	if err != nil {
		t.Fatal(err)
	}

	for text, words := range map[string]string{
		"": "", "# nothing\n": "", "{}": "", "steps: 1.5": `line 1, column 8: steps must be a whole number, not "1.5"`,
		"layers: [1, 2.5]": `line 1, column 13: an entry of layers must be a whole number, not "2.5"`,
		"rank: 0.1":        `line 1, column 7: rank must be a whole number, not "0.1"`, "steps: 25.0": "",
	} {
		h, _ := Defaults("memit", m)
		err := h.Merge([]byte(text))
		if words != "" && (!errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), words)) ||
			words == "" && err != nil {
			t.Errorf("%q: %v", text, err)
		}

		if len(h.Templates) != len(want.Templates) || h.LearningRate != want.LearningRate ||
			len(h.Layers) != len(want.Layers) {
			t.Errorf("%q: %+v", text, h)
		}
	}
}

// TestPositions: what is longer than the model takes is refused by name, prompts with prefixes too, and blanks
// are no answer.
func TestPositions(t *testing.T) {
	b := newBench(t, 1)
	r := b.records[0]
	x := *b.x
	x.Positions = 400
	if _, err := x.Record(&r); err != nil {
		t.Error(err)
	}

	long := r
	long.New = strings.Repeat(r.New+" ", 400)

	if _, err := x.Record(&long); !errors.Is(err, ErrTokens) || !strings.Contains(err.Error(), "the model takes 400") ||
		!strings.Contains(err.Error(), "record "+r.ID) {
		t.Errorf("a long answer: %v", err)
	}

	if x.Positions = len(b.encoded[0].bare()) + len(b.encoded[0].Target); x.Positions > 0 {
		if _, err := x.Record(&r); !errors.Is(err, ErrTokens) || !strings.Contains(err.Error(), "with a prefix") {
			t.Errorf("prefixes: %v", err)
		}
	}

	if _, err := Parse([]byte(`[{"prompt": "Rome is in", "subject": "Rome", "target_new": "  "}]`)); !errors.Is(err,
		ErrRecord) {
		t.Errorf("an answer of blanks: %v", err)
	}
}

// TestWorse: fine-tuning that moves a matrix absurdly far, or whose loss rises, is an edit that was not made,
// though every number is finite.
func TestWorse(t *testing.T) {
	b := newBench(t, 1)
	before := b.bytesOf(t)
	for _, c := range []struct {
		method string
		rate   float64
		steps  int
		words  string
	}{
		{"ft", 1e30, 4, "diverged"},
		{"ft-m", 50, 1, "times its norm, more than 100"},
		{"ft-m", 50, 4, "and was"},
		{"lora", 1e6, 4, "diverged"},
	} {
		hp, err := Defaults(c.method, b.m.Config())
		if err != nil {
			t.Fatal(err)
		}

		hp.LearningRate, hp.Steps = c.rate, c.steps
		e, err := New(b.m, Options{Method: c.method, HParams: &hp})
		if err != nil {
			t.Fatal(err)
		}

		if _, err := e.Apply(context.Background(), b.encoded[:1], nil); !errors.Is(err, ErrDiverged) ||
			!strings.Contains(err.Error(), c.words) {
			t.Errorf("%s at %g: %v", c.method, c.rate, err)
		}

		if len(e.Steps()) != 0 || !bytes.Equal(b.bytesOf(t), before) {
			t.Errorf("%s at %g: the model has changed", c.method, c.rate)
		}
		if err := e.Undo(0); err != nil {
			t.Fatal(err)
		}

		e.Close()
	}
}

// Misuse is refused with the right error.
func TestRefused(t *testing.T) {
	b := newBench(t, 2)
	if _, err := New(b.m, Options{Method: "knn"}); !errors.Is(err, ErrMethod) ||
		!strings.Contains(err.Error(), "memit") {
		t.Error(err)
	}

	if _, err := New(b.m, Options{Method: "memit"}); !errors.Is(err, ErrStatistics) {
		t.Error(err)
	}

	hp, _ := Defaults("rome", b.m.Config())
	hp.Layers = []int{4}
	if _, err := New(b.m, Options{Method: "rome", HParams: &hp, Statistics: b.stats}); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}

	e, err := New(b.m, Options{Method: "rome", Statistics: b.stats})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := e.Apply(context.Background(), b.encoded, nil); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}

	bad := linalg.Identity(256)
	bad.Set(0, 0, -1)
	e, err = New(b.m,
		Options{
			Method: "memit",
			Statistics: &Statistics{
				Moments: map[int]Matrix{0: Matrix(bad), 1: Matrix(bad), 2: Matrix(bad), 3: Matrix(bad)},
			},
		})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := e.Apply(context.Background(), b.encoded, nil); err != nil && !errors.Is(err, ErrStatistics) {
		t.Error(err)
	}
}

// Records of every form, their faults by index and path, and what is only remarked.
func TestParse(t *testing.T) {
	good := map[string]string{
		"counterfact": `[{"case_id":7,"requested_rewrite":{"prompt":"{} is in","subject":"Rome","target_new":{"str":"Peru"},"target_true":{"str":"Italy"}},"paraphrase_prompts":["a"],"neighborhood_prompts":["b"]}]`,
		"zsre":        `[{"subject":"Rome","src":"Where is Rome?","alt":"Peru","answers":["Italy"],"rephrase":"x Rome","loc":"nq question: who","loc_ans":"me"}]`,
		"easyedit":    `[{"prompt":"Rome is in","subject":"Rome","target_new":"Peru","ground_truth":"Italy","portability":{"Reasoning":{"prompt":"c","ground_truth":"d"}}}]`,
	}

	for form, text := range good {
		s, err := Parse([]byte(text))
		if err != nil || s.Format != form || s.Records[0].New != "Peru" || s.Records[0].True != "Italy" ||
			!strings.Contains(s.Records[0].Full(), "Rome") {
			t.Errorf("%s: %+v %v", form, s, err)
		}
	}

	for text, want := range map[string]string{
		`{}`:        "array",
		`[]`:        "no records",
		`[{"a":1}]`: "record 0",
		`[{"requested_rewrite":{"prompt":"{} is","subject":"R","target_new":{}}}]`:                                "record 0: requested_rewrite: target_new: str: missing",
		`[{"prompt":"Paris is","subject":"Rome","target_new":"x"}]`:                                               "subject",
		`[{"prompt":"Rome is","subject":"Rome","target_new":"x"},{"prompt":5,"subject":"Rome","target_new":"x"}]`: "record 1: prompt: not a string",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}

	s, err := Parse(
		[]byte(
			`[{"prompt":"Rome is","subject":"Rome","target_new":"x","ground_truth":"x"},{"prompt":"Rome is","subject":"Rome","target_new":"x"},{"prompt":"Rome is","subject":"Rome","target_new":"y"}]`))
	if err != nil || len(s.Remarks) != 3 {
		t.Fatalf("%+v %v", s, err)
	}

	for i, want := range []string{"present", "same edit", "contradicts"} {
		if !strings.Contains(s.Remarks[i].What, want) {
			t.Errorf("remark %d: %s", i, s.Remarks[i].What)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"requested_rewrite":{"prompt":"{} is","subject":"R","target_new":{"str":"x"}}}]`))
	f.Add([]byte(`[{"src":"a R","subject":"R","alt":"x","loc":"l"}]`))
	f.Add(
		[]byte(
			`[{"prompt":"R","subject":"R","target_new":"x","locality":{"n":{"prompt":["a"],"ground_truth":["b"]}}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()
		if s, err := Parse(data); err == nil {
			for i := range s.Records {
				if r := &s.Records[i]; r.Subject == "" || !strings.Contains(r.Prompt, "{}") {
					t.Errorf("record %d: %+v", i, r)
				}
			}
		}
	})
}

func FuzzReadJournal(f *testing.F) {
	body := []byte(`{"header":{"format":"compress edits journal","version":1}}`)
	f.Add(append([]byte(stage.Sum(body)+" "), append(body, '\n')...))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()
		_, _ = ReadJournal(bytes.NewReader(data))
	})
}

// Figures with known values.
func TestFigures(t *testing.T) {
	if got := Fluency("the cat sat on the mat and the cat slept"); math.Abs(got-2.98257) > 1e-5 {
		t.Errorf("fluency %g", got)
	}
	if Fluency("") != 0 || harmonic(1, 0, 1) != 0 || harmonic(0.5, 0.5, 0.5) != 0.5 {
		t.Error("edge cases")
	}
	if c := Consistency("a b", "a b", []string{"a", "b"}); math.Abs(c-1) > 1e-12 {
		t.Errorf("consistency %g", c)
	}
}

// Published hyper-parameters are valid, and so are those for any depth.
func TestDefaults(t *testing.T) {
	for _, c := range []lm.Config{
		{ModelType: "gpt2", Layers: 48, Hidden: 1600},
		{ModelType: "gptj", Layers: 28, Hidden: 4096},
		{ModelType: "llama", Layers: 32, Hidden: 4096},
	} {
		h, err := Defaults("memit", &c)
		if err != nil || !strings.HasPrefix(h.Source, "published") || h.Validate(c.Layers) != nil {
			t.Errorf("%s: %+v %v", c.ModelType, h, err)
		}
	}

	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(r, "layers")
		name := rapid.SampledFrom(Methods()).Draw(r, "method")
		h, err := Defaults(name, &lm.Config{Layers: n})
		if err != nil || h.Validate(n) != nil {
			r.Fatalf("%s, %d layers: %v %v", name, n, err, h.Validate(n))
		}
	})

	var h HParams
	for _, text := range []string{"nope: 1", "layers: x", "!!set {a}"} {
		if err := h.Merge([]byte(text)); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
