package edit

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

func encoder(t *testing.T, templates ...[]string) *Encoder {
	t.Helper()
	tok, err := tokenizer.Load(nano + "/base")
	if err != nil {
		t.Fatal(err)
	}
	return &Encoder{Tokenizer: tok, Templates: templates}
}

// TestEncodeRecord: every template holds the prompt, the position is that of the subject's last token, and the target's
// tokens are what the prompt with it has more.
func TestEncodeRecord(t *testing.T) {
	x := encoder(t, []string{"{}"}, []string{"Well, so. {}", "Yes. {}"})
	r := Record{ID: "7", Prompt: "The birthplace of {} is", Subject: "Wanda Brandt", New: "Oslo"}
	e, err := x.Record(&r)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	if len(e.Prompts) != 3 || !slices.Equal(e.Groups, []int{1, 2}) {
		t.Fatalf("%+v", e)
	}

	for i, head := range []string{"", "Well, so. ", "Yes. "} {
		whole := x.Tokenizer.Decode(e.Prompts[i], true)
		if strings.TrimSpace(whole) != head+"The birthplace of Wanda Brandt is" {
			t.Errorf("template %d: %q", i, whole)
		}
		// up to the position the text ends with the subject, one token earlier it does not
		for back, want := range []bool{true, false} {
			text := x.Tokenizer.Decode(e.Prompts[i][:e.Lookup[i]+1-back], true)
			if strings.HasSuffix(text, "Wanda Brandt") != want {
				t.Errorf("template %d, %d back: %q", i, back, text)
			}
		}
	}

	text := x.Tokenizer.Decode(append(slices.Clone(e.Prompts[0]), e.Target...), true)
	if strings.TrimSpace(text) != "The birthplace of Wanda Brandt is Oslo" {
		t.Errorf("with the target: %q", text)
	}
	if kl := x.Tokenizer.Decode(e.KL, true); strings.TrimSpace(kl) != "Wanda Brandt is a" || e.KLLookup >= len(e.KL)-1 {
		t.Errorf("%q at %d", kl, e.KLLookup)
	}
}

// TestEncodeFaults: what cannot be encoded is an error that names the record.
func TestEncodeFaults(t *testing.T) {
	x := encoder(t, []string{"{}"})
	for name, c := range map[string]struct {
		record    Record
		positions int
		want      error
	}{
		"no place for the subject": {Record{ID: "7", Prompt: "x", Subject: "a", New: "b"}, 0, ErrSubject},
		"too long":                 {Record{ID: "7", Prompt: "{} is", Subject: "Wanda", New: "Oslo"}, 2, ErrTokens},
	} {
		x.Positions = c.positions
		if _, err := x.Record(&c.record); !errors.Is(err, c.want) || !strings.Contains(err.Error(), "record 7: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnswer: the space between a prompt and its answer belongs to the answer, however it is written.
func TestAnswer(t *testing.T) {
	x := encoder(t)
	want, err := x.Answer("The capital is", "Oslo")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{"The capital is ", "Oslo"}, {"The capital is", " Oslo"}, {"The capital is  ", "  Oslo"},
	} {
		if got, err := x.Answer(c[0], c[1]); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q + %q: %v, want %v (%v)", c[0], c[1], got, want, err)
		}
	}
}

// TestDocument: the beginning of a text, without special tokens.
func TestDocument(t *testing.T) {
	x := encoder(t)
	whole, err := x.Document("The swan and the miller went to the fair.", 0)
	if err != nil || len(whole) < 5 {
		t.Fatal(whole, err)
	}
	cut, err := x.Document("The swan and the miller went to the fair.", 3)
	if err != nil || !slices.Equal(cut, whole[:3]) {
		t.Errorf("%v of %v (%v)", cut, whole, err)
	}
}

// TestDriftPrompts: one prompt of each record that has one, of another subject if it can be, and no more than asked
// for.
func TestDriftPrompts(t *testing.T) {
	x := encoder(t)
	records := []Record{
		{Near: []string{"Near one", "not this"}},
		{},
		{Far: []Question{{Prompt: "Far one"}}},
		{Near: []string{"Near two"}, Far: []Question{{Prompt: "not this"}}},
	}
	for limit, want := range map[int]string{
		0: "", 1: "Near one", 2: "Near one|Far one", 9: "Near one|Far one|Near two",
	} {
		list, err := x.Prompts(records, limit)
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, ids := range list {
			texts = append(texts, strings.TrimSpace(x.Tokenizer.Decode(ids, true)))
		}
		if got := strings.Join(texts, "|"); got != want {
			t.Errorf("limit %d: %q, want %q", limit, got, want)
		}
	}
}

// TestEncodedValidate: positions lie in their prompts, groups are those of the prompts.
func TestEncodedValidate(t *testing.T) {
	fine := Encoded{
		Prompts: [][]int32{{1, 2}, {3}}, Lookup: []int{1, 0}, Groups: []int{1, 1}, Target: []int32{4}, KL: []int32{1},
	}
	if err := fine.Validate(); err != nil {
		t.Fatal(err)
	}

	for name, change := range map[string]func(e *Encoded){
		"no prompts":          func(e *Encoded) { e.Prompts = nil },
		"no target":           func(e *Encoded) { e.Target = nil },
		"fewer positions":     func(e *Encoded) { e.Lookup = []int{1} },
		"behind a prompt":     func(e *Encoded) { e.Lookup = []int{1, 1} },
		"before a prompt":     func(e *Encoded) { e.Lookup = []int{-1, 0} },
		"an empty group":      func(e *Encoded) { e.Groups = []int{2, 0} },
		"groups of too few":   func(e *Encoded) { e.Groups = []int{1} },
		"behind the sentence": func(e *Encoded) { e.KLLookup = 1 },
	} {
		e := fine
		change(&e)
		if err := e.Validate(); !errors.Is(err, ErrTokens) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNumbers: a matrix comes back from a journal, of float64 to the last bit and of float32 as it rounds; sizes that
// do not fit, and what is no number, are refused.
func TestNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m := linalg.New(3, 5)
	for i := range m.Data {
		m.Data[i] = r.NormFloat64()
	}

	back, err := pack(m, false).unpack()
	if err != nil || !slices.Equal(back.Data, m.Data) || back.Rows != 3 || back.Cols != 5 {
		t.Errorf("%v (%v)", back, err)
	}
	back, err = pack(m, true).unpack()
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range m.Data {
		if back.Data[i] != float64(float32(v)) {
			t.Errorf("%g, of %g", back.Data[i], v)
		}
	}

	part := linalg.Matrix{Rows: 2, Cols: 2, Stride: 5, Data: m.Data}
	if back, err := pack(part, false).unpack(); err != nil || back.Data[2] != m.Data[5] {
		t.Errorf("a part of a matrix: %v (%v)", back, err)
	}
	if none, err := (*numbers)(nil).unpack(); err != nil || none.Rows != 0 {
		t.Errorf("%v (%v)", none, err)
	}

	for _, bad := range []numbers{
		{Rows: 0, Cols: 1},
		{Rows: 1, Cols: 1, Data: []byte{1}},
		{Rows: 1 << 40, Cols: 1 << 40, Data: make([]byte, 8)},
		{Rows: -1, Cols: -1, Data: make([]byte, 8)},
	} {
		if _, err := bad.unpack(); !errors.Is(err, ErrJournal) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	m.Data[7] = math.NaN()
	if _, err := pack(m, false).unpack(); err == nil {
		t.Error("a number that is none")
	}
}

// TestWeightTypes: what is stored comes back from the sum to the last bit, in every type and layout, and values that
// the type cannot hold are refused.
func TestWeightTypes(t *testing.T) {
	for _, c := range []struct {
		dtype kernels.DType
		most  float64
	}{{kernels.F32, math.MaxFloat32}, {kernels.BF16, math.MaxFloat32}, {kernels.F16, 65504}} {
		for _, transposed := range []bool{false, true} {
			base := make([]byte, 6*c.dtype.Size())
			for i := range base {
				base[i] = byte(7*i + 1) // finite in all three types
			}

			l := lm.Linear{Name: "w", Out: 2, In: 3, Transposed: transposed}
			w := &weight{linear: l, dtype: c.dtype, base: base}
			if err := w.reset(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(w.bytes(), base) {
				t.Errorf("%s, transposed %v: %v, stored %v", c.dtype, transposed, w.bytes(), base)
			}
			if err := w.fits(); err != nil {
				t.Error(err)
			}

			w.sum.Data[5] = 1.01 * c.most
			if err := w.fits(); !errors.Is(err, ErrDiverged) {
				t.Errorf("%s: %g is stored: %v", c.dtype, w.sum.Data[5], err)
			}
		}
	}

	short := &weight{linear: lm.Linear{Name: "w", Out: 2, In: 3}, dtype: kernels.F32, base: make([]byte, 20)}
	if err := short.reset(); !errors.Is(err, ErrJournal) {
		t.Errorf("five elements for six: %v", err)
	}
}

// TestDeltas: factors and a written delta are the same change, with the same norms; one of another shape is refused.
func TestDeltas(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	fill := func(m linalg.Matrix) linalg.Matrix {
		for i := range m.Data {
			m.Data[i] = r.NormFloat64()
		}
		return m
	}

	factors := Delta{Linear: "w", left: fill(linalg.New(4, 2)), right: fill(linalg.New(3, 2))}
	dense := Delta{Linear: "w", dense: factors.written()}
	one := &weight{linear: lm.Linear{Name: "w", Out: 4, In: 3}, sum: linalg.New(4, 3), norm: 2}
	two := &weight{linear: one.linear, sum: linalg.New(4, 3), norm: 2}
	for w, d := range map[*weight]*Delta{one: &factors, two: &dense} {
		if err := errors.Join(w.add(d), w.measure(d)); err != nil {
			t.Fatal(err)
		}
	}

	// sums of two products: a few roundings of 2^-53
	for i := range one.sum.Data {
		if math.Abs(one.sum.Data[i]-two.sum.Data[i]) > 1e-14 {
			t.Errorf("element %d: %g, %g", i, one.sum.Data[i], two.sum.Data[i])
		}
	}
	a, b := factors.Norms, dense.Norms
	if math.Abs(a.Frobenius-b.Frobenius) > 1e-12 || math.Abs(a.Spectral-b.Spectral) > 1e-12 ||
		math.Abs(a.Rank-b.Rank) > 1e-6 || a.Relative != a.Frobenius/2 || !(a.Rank > 1 && a.Rank <= 2) ||
		math.Abs(a.Frobenius-dense.dense.Norm()) > 1e-12 {
		t.Errorf("%+v, %+v", a, b)
	}

	for _, bad := range []Delta{
		{dense: linalg.New(3, 4)},
		{left: linalg.New(4, 1), right: linalg.New(3, 2)},
		{left: linalg.New(4, 1), right: linalg.New(2, 1)},
	} {
		if err := one.add(&bad); !errors.Is(err, ErrJournal) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestHParamsValidate: every value out of range is named.
func TestHParamsValidate(t *testing.T) {
	fine, err := Defaults("memit", &lm.Config{Layers: 12})
	if err != nil {
		t.Fatal(err)
	}
	if err := fine.Validate(12); err != nil {
		t.Fatal(err)
	}

	for want, change := range map[string]func(h *HParams){
		"layers: none":                     func(h *HParams) { h.Layers = nil },
		"layers[0]: 12, the model has 0":   func(h *HParams) { h.Layers = []int{12} },
		"layers[1]: 3 after 3":             func(h *HParams) { h.Layers = []int{3, 3} },
		"steps: 0":                         func(h *HParams) { h.Steps = 0 },
		"learning_rate: 0 is out of range": func(h *HParams) { h.LearningRate = 0 },
		"clamp: -1 is out of range":        func(h *HParams) { h.Clamp = -1 },
		"kl_factor: NaN is out of range":   func(h *HParams) { h.KL = math.NaN() },
		"eps: +Inf is out of range":        func(h *HParams) { h.Eps = math.Inf(1) },
		"null_threshold: 2 values for":     func(h *HParams) { h.NullThreshold = []float64{1, 2} },
		"null_threshold: not above zero":   func(h *HParams) { h.NullThreshold = []float64{0} },
		"rank: -1":                         func(h *HParams) { h.Rank = -1 },
		`templates: the first is not "{}"`: func(h *HParams) { h.Templates = [][]string{{"x {}"}} },
		"templates[1]: empty group":        func(h *HParams) { h.Templates = [][]string{{"{}"}, {}} },
		"templates[1][0]: not one {}":      func(h *HParams) { h.Templates = [][]string{{"{}"}, {"{} x"}} },
	} {
		h := fine
		change(&h)
		if err := h.Validate(12); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}

	bad := fine
	bad.Steps, bad.Rank = 0, -1
	if err := bad.Validate(12); !strings.Contains(err.Error(), "steps: 0") ||
		!strings.Contains(err.Error(), "rank: -1") {
		t.Errorf("only one of two faults: %v", err)
	}
}
