package edit

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// Tolerances, relative to the norm of what is compared, are those that the reference measured for itself in
// float32 (its README).
const (
	tolValue = 1e-4 // v*, r, z, losses
	tolDelta = 1e-3 // directions and deltas: a solve with a covariance of large condition
)

// oracle lists the folders of reference cases.
func oracle(t *testing.T) []string {
	dir := os.Getenv("COMPRESS_ORACLE")
	if dir == "" {
		dir = "../../../shared/oracle"
	}
	list, _ := filepath.Glob(filepath.Join(dir, "editing", "*", "cases.json"))
	if len(list) == 0 {
		t.Skipf("%s is not there", filepath.Join(dir, "editing"))
	}
	return list
}

// request is one as the reference writes it.
type request struct {
	Prompts  [][]int32 `json:"prompts"`
	Lookup   []int     `json:"lookup"`
	Groups   []int     `json:"groups"`
	Target   []int32   `json:"target"`
	KL       []int32   `json:"kl_prompt"`
	KLLookup int       `json:"kl_lookup"`
}

func (r request) encoded() Encoded {
	return Encoded(r)
}

// suite is a file of reference cases.
type suite struct {
	Model     string `json:"model"`
	EditLayer int    `json:"edit_layer"`
	Layers    []int  `json:"layers"`
	Stats     struct {
		Docs   [][]int32 `json:"docs"`
		Tokens int       `json:"tokens"`
	} `json:"stats"`
	ROME   []request                    `json:"rome_requests"`
	MEMIT  []request                    `json:"memit_requests"`
	Probes []json.RawMessage            `json:"probe_prompts"`
	Cases  []map[string]json.RawMessage `json:"cases"`

	dir string
	src *safetensors.File
	m   *lm.Model
}

func device(t *testing.T) kernels.Device {
	dev := cpu.New(cpu.Options{})
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// load opens a suite, its tensors and its model in float32.
func load(t *testing.T, path string) *suite {
	t.Helper()
	s := &suite{dir: filepath.Dir(path)}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	if s.src, err = safetensors.Open(filepath.Join(s.dir, "tensors.safetensors")); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = s.src.Close() })
	model := s.dir
	if _, err := os.Stat(filepath.Join(model, "model.safetensors")); err != nil {
		model = filepath.Join(s.dir, "../../../data", filepath.Base(s.dir), "base")
	}

	s.m = float32Model(t, model)
	return s
}

// float32Model loads a model widened to float32.
func float32Model(t *testing.T, dir string) *lm.Model {
	t.Helper()
	dev, ctx := device(t), context.Background()
	m, err := lm.Load(ctx, dir, dev, lm.Options{})
	if err != nil {
		t.Skipf("%s: %v", dir, err)
	}

	wide := filepath.Join(t.TempDir(), "wide")
	s, err := m.NewSaver(wide, lm.SaveOptions{DType: safetensors.F32})
	if err == nil {
		err = s.Finish(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}

	_ = m.Close()
	m, err = lm.Load(ctx, wide, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = m.Close() })
	return m
}

// tensor reads a reference tensor.
func (s *suite) tensor(t *testing.T, name string) linalg.Matrix {
	t.Helper()
	info, ok := s.src.Info(name)
	if !ok {
		t.Fatalf("%s has no tensor %q", s.dir, name)
	}

	data, err := s.src.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	cols := int(info.Shape[len(info.Shape)-1])
	n := 1
	for _, d := range info.Shape {
		n *= int(d)
	}

	d := kernels.F64
	if info.DType == safetensors.F32 {
		d = kernels.F32
	}

	buf := kernels.NewHost(d, n)
	copy(buf.Bytes(), data)
	return linalg.FromMat(kernels.MatOf(buf, n/cols, cols))
}

func (s *suite) has(name string) bool { _, ok := s.src.Info(name); return ok }

// statistics are the reference's.
func (s *suite) statistics(t *testing.T) *Statistics {
	st := &Statistics{Moments: map[int]Matrix{}}
	for _, name := range s.src.Names() {
		if n, ok := strings.CutPrefix(name, "stats.C."); ok {
			b, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			st.Moments[b] = Matrix(s.tensor(t, name))
		}
	}

	return st
}

// probes are the prompts whose logits are compared.
func (s *suite) probes(t *testing.T) [][]int32 {
	var out [][]int32
	for _, p := range s.Probes {
		var ids []int32
		if json.Unmarshal(p, &ids) != nil {
			var o struct {
				IDs []int32 `json:"ids"`
			}
			if err := json.Unmarshal(p, &o); err != nil {
				t.Fatal(err)
			}

			ids = o.IDs
		}

		out = append(out, ids)
	}

	return out
}

// near compares vectors by the norm of their difference.
func near(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	if d := site.Distance(got, want) / max(site.Norm(want), 1e-12); !(d <= tol) {
		t.Errorf("%s: relative error %.2e, above %.0e", what, d, tol)
	}
}

// hyper reads a case's hyper-parameters into those of a method.
func (s *suite) hyper(t *testing.T, c map[string]json.RawMessage, method string) HParams {
	t.Helper()
	var h struct {
		Layer     *int    `json:"layer"`
		Layers    []int   `json:"layers"`
		LR        float64 `json:"lr"`
		Steps     int     `json:"steps"`
		KL        float64 `json:"kl"`
		WD        float64 `json:"wd"`
		Clamp     float64 `json:"clamp"`
		Eps       float64 `json:"eps"`
		Lambda    float64 `json:"lambda"`
		Weight    float64 `json:"weight"`
		Norm      float64 `json:"norm_lambda"`
		Elam      float64 `json:"elam"`
		Threshold float64 `json:"threshold"`
		L2        float64 `json:"l2"`
		Dir       string  `json:"kl_dir"`
	}

	var top struct {
		Layer  *int                                   `json:"layer"`
		Layers []int                                  `json:"layers"`
		Lambda float64                                `json:"lambda"`
		Weight float64                                `json:"weight"`
		Norm   float64                                `json:"update_norm_lambda"`
		Elam   float64                                `json:"emmet_lambda"`
		L2     float64                                `json:"L2"`
		LR     float64                                `json:"lr"`
		Steps  int                                    `json:"steps"`
		Eps    float64                                `json:"eps_init"`
		Null   map[string]struct{ Threshold float64 } `json:"null_space"`
	}

	raw, _ := json.Marshal(c)
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}

	if c["hparams"] != nil {
		if err := json.Unmarshal(c["hparams"], &h); err != nil {
			t.Fatal(err)
		}
	}

	p, err := Defaults(method, s.m.Config())
	if err != nil {
		t.Fatal(err)
	}

	p.Layers = []int{s.EditLayer}
	for _, l := range [][]int{top.Layers, h.Layers} {
		if l != nil {
			p.Layers = l
		}
	}

	for _, l := range []*int{top.Layer, h.Layer} {
		if l != nil {
			p.Layers = []int{*l}
		}
	}

	p.LearningRate = h.LR + top.LR
	p.Steps = h.Steps + top.Steps
	p.KL = h.KL

	p.WeightDecay = h.WD
	p.Clamp = max(h.Clamp, 1e-9)
	p.Eps = h.Eps + top.Eps

	p.ReverseKL = h.Dir == "init"
	p.Lambda = h.Lambda + top.Lambda
	p.Weight = h.Weight + top.Weight

	p.NormLambda = h.Norm + top.Norm
	p.EmmetLambda = h.Elam + top.Elam
	p.L2 = h.L2 + top.L2
	p.NullThreshold = nil
	if h.Threshold > 0 {
		p.NullThreshold = []float64{h.Threshold}
	}

	for _, l := range p.Layers {
		if n, ok := top.Null[strconv.Itoa(l)]; ok {
			p.NullThreshold = append(p.NullThreshold, n.Threshold)
		}
	}

	return p
}

// requests are those of a case.
func (s *suite) requests(t *testing.T, c map[string]json.RawMessage, from []request) []Encoded {
	t.Helper()
	var list []int
	if c["requests"] != nil {
		if err := json.Unmarshal(c["requests"], &list); err != nil {
			t.Fatal(err)
		}
	} else {
		var one int
		if err := json.Unmarshal(c["request"], &one); err != nil {
			t.Fatal(err)
		}
		list = []int{one}
	}

	var out []Encoded
	for _, i := range list {
		out = append(out, from[i].encoded())
	}

	return out
}

// logits compares the model's logits after the last token of every probe.
func (s *suite) logits(t *testing.T, e *Editing, name string, tol float64) {
	t.Helper()
	want := s.tensor(t, name)
	for i, p := range s.probes(t) {
		if b := e.Codebook(); b != nil {
			b.At([]int{len(p) - 1})
		}

		r, err := s.m.Forward(context.Background(), [][]int32{p}, lm.ForwardOptions{Logits: true, NoLoss: true})
		if err != nil {
			t.Fatal(err)
		}

		got, err := site.Rows{Dev: s.m.Device()}.Get(r.Logits, len(p)-1)
		if err != nil {
			t.Fatal(err)
		}

		near(t, name+" "+strconv.Itoa(i), got, want.Row(i), tol)
	}
}

// delta compares a change with a whole matrix, or with a slice and a product.
func (s *suite) delta(t *testing.T, name string, got linalg.Matrix) {
	t.Helper()

	if s.has(name) {
		near(t, name, got.Data, s.tensor(t, name).Data, tolDelta)
		return
	}

	if !s.has(name + ".probe") {
		return
	}

	p := s.tensor(t, "probe_matrix")
	product := linalg.New(got.Rows, p.Cols)
	linalg.Solver{}.Mul(product, got, p, linalg.Product{})
	near(t, name+".probe", product.Data, s.tensor(t, name+".probe").Data, tolDelta)
	near(t, name+".slice", got.Sub(0, 8, 0, 8).Clone().Data, s.tensor(t, name+".slice").Data, tolDelta)
}

// history compares losses.
func history(t *testing.T, name string, got []Loss, raw json.RawMessage) {
	t.Helper()
	var want []Loss
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}

	if len(got) != len(want) {
		t.Errorf("%s: %d iterations, want %d", name, len(got), len(want))
		return
	}

	for i := range want {
		for _, v := range [][2]float64{
			{got[i].NLL, want[i].NLL},
			{got[i].KL, want[i].KL},
			{got[i].Decay, want[i].Decay},
			{got[i].Total, want[i].Total},
			{got[i].Norm, want[i].Norm},
		} {
			if math.Abs(v[0]-v[1]) > tolValue*max(1, math.Abs(v[1])) {
				t.Errorf("%s: iteration %d: %+v, want %+v", name, i, got[i], want[i])
				return
			}
		}
	}
}

// TestOracleEditors runs every case of every folder.
func TestOracleEditors(t *testing.T) {
	for _, path := range oracle(t) {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			s := load(t, path)
			st := s.statistics(t)
			var alpha *Editing
			for _, c := range s.Cases {
				var name string
				_ = json.Unmarshal(c["name"], &name)
				t.Run(name, func(t *testing.T) { alpha = s.run(t, name, c, st, alpha) })
			}
		})
	}
}

// run is one case; AlphaEdit's second batch continues the first.
func (s *suite) run(t *testing.T, name string, c map[string]json.RawMessage, st *Statistics, alpha *Editing) *Editing {
	kind, _, _ := strings.Cut(name, ".")
	method := map[string]string{
		"rome": "rome", "rome_identity_C": "rome", "rome_clamped": "rome", "rome_reverse_kl": "rome",
		"rome_sequence": "rome", "r_rome": "r-rome", "r_rome_bare": "r-rome",
		"memit": "memit", "memit_single": "memit", "emmet": "emmet", "alphaedit": "alphaedit", "ft_l": "ft-l",
		"ft_l_unclamped": "ft", "ft_m": "ft-m", "grace": "grace",
	}[kind]

	if method == "" {
		t.Skipf("no editor's case")
	}

	hp := s.hyper(t, c, method)
	hp.Statistics, hp.BareKey = kind != "rome_identity_C", kind == "r_rome_bare"

	if name == "alphaedit.batch1" {
		s.spread(t, name, c, alpha, s.requests(t, c, s.MEMIT))
		if err := alpha.Undo(0); err != nil {
			t.Fatal(err)
		}
		return nil
	}

	e, err := New(s.m, Options{Method: method, HParams: &hp, Statistics: st})
	if err != nil {
		t.Fatal(err)
	}

	switch method {
	case "rome", "r-rome":
		s.rome(t, name, c, e)
	case "ft", "ft-l", "ft-m":
		s.train(t, name, c, e)
	case "grace":
		s.grace(t, c, e)
	default:
		s.spread(t, name, c, e, s.requests(t, c, s.MEMIT))
	}

	if name == "alphaedit.batch0" {
		return e
	}

	e.Close()
	if err := e.Undo(0); err != nil {
		t.Fatal(err)
	}

	return alpha
}

func (s *suite) rome(t *testing.T, name string, c map[string]json.RawMessage, e *Editing) {
	reqs := s.requests(t, c, s.ROME)
	var last *Step
	sum := linalg.Matrix{}
	for _, r := range reqs {
		step, err := e.Apply(context.Background(), []Encoded{r}, nil)
		if err != nil {
			t.Fatal(err)
		}

		last = step
		d := step.Deltas[0].written()
		if sum.Rows == 0 {
			sum = linalg.New(d.Rows, d.Cols)
		}
		for i := range d.Data {
			sum.Data[i] += d.Data[i]
		}
	}

	s.delta(t, name+".dW", sum)
	s.logits(t, e, name+".logits", tolDelta)
	if len(reqs) > 1 {
		return
	}

	history(t, name, last.History[0], c["history"])
	d := last.Deltas[0]
	near(t, "r", site.Row(d.left.T(), 0), s.tensor(t, name+".r").Data, tolDelta)
	near(t, "u", site.Row(d.right.T(), 0), s.tensor(t, name+".u").Data, tolDelta)
	s.searched(t, name, e, reqs[0])
}

// searched compares the value, its gradient's consequences and the keys, and that the edited matrix gives it.
func (s *suite) searched(t *testing.T, name string, e *Editing, r Encoded) {
	b := e.hp.Layers[0]
	after, err := site.Look(context.Background(), s.m, places([]Encoded{r}), []int{b})
	if err != nil {
		t.Fatal(err)
	}

	if s.has(name + ".k0") {
		near(t, "k0", after.Keys[b].Row(0), s.tensor(t, name+".k0").Data, tolValue)
		near(t, "kbar", site.GroupMean(site.Vectors(after.Keys[b], 0, after.Keys[b].Rows), []int{after.Keys[b].Rows}),
			s.tensor(t, name+".kbar").Data, tolValue)
	}

	if e.method.name == "rome" || e.hp.BareKey {
		near(t, "v*", after.Values[b].Row(0), s.tensor(t, name+".v_star").Data, tolValue)
	}
}

func (s *suite) spread(t *testing.T, name string, c map[string]json.RawMessage, e *Editing, reqs []Encoded) {
	step, err := e.Apply(context.Background(), reqs, nil)
	if err != nil {
		t.Fatal(err)
	}

	var raw []json.RawMessage
	if err := json.Unmarshal(c["history"], &raw); err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		history(t, name, step.History[i], raw[i])
	}

	for i, b := range e.hp.Layers {
		s.delta(t, name+".dW."+strconv.Itoa(b), step.Deltas[i].written())
		near(t, "R", step.Deltas[i].left.Data, s.tensor(t, name+".R."+strconv.Itoa(b)).Data, tolDelta)
		if n := "alphaedit.cache." + strconv.Itoa(b); name == "alphaedit.batch1" && s.has(n) {
			near(t, n, e.gram(e.past.keys[b].T(), e.past.keys[b].T()).Data, s.tensor(t, n).Data, tolDelta)
		}
	}

	s.logits(t, e, name+".logits", tolDelta)
}

func (s *suite) train(t *testing.T, name string, c map[string]json.RawMessage, e *Editing) {
	reqs := s.requests(t, c, s.ROME)
	step, err := e.Apply(context.Background(), reqs, nil)
	if err != nil {
		t.Fatal(err)
	}

	var want []float64
	if err := json.Unmarshal(c["history"], &want); err != nil {
		t.Fatal(err)
	}

	near(t, "history", step.Losses[0], want, tolValue)
	s.delta(t, name+".dW", step.Deltas[0].written())
	s.logits(t, e, name+".logits", tolDelta)

	if e.hp.Eps > 0 {
		if d := step.Deltas[0].written().MaxAbs(); d > e.hp.Eps*(1+1e-12) {
			t.Errorf("largest change %g, above %g", d, e.hp.Eps)
		}
	}
}

func (s *suite) grace(t *testing.T, c map[string]json.RawMessage, e *Editing) {
	var edits []struct {
		Prompt, Target []int32
		Action         string
		Eps            []float64 `json:"eps_after"`
		History        []float64
	}

	if err := json.Unmarshal(c["edits"], &edits); err != nil {
		t.Fatal(err)
	}

	for i, r := range edits {
		step, err := e.Apply(context.Background(),
			[]Encoded{{Prompts: [][]int32{r.Prompt}, Lookup: []int{0}, Groups: []int{1}, Target: r.Target}}, nil)
		if err != nil {
			t.Fatal(err)
		}

		what := "edit " + strconv.Itoa(i)
		if got := step.Codes[len(step.Codes)-1].Action; got != r.Action {
			t.Errorf("%s: %s, want %s", what, got, r.Action)
		}

		var eps []float64
		for _, x := range e.Codebook().codes {
			eps = append(eps, x.Eps)
		}

		near(t, what+" radii", eps, r.Eps, tolValue)
		near(t, what+" history", step.Losses[0], r.History, tolDelta)
	}

	keys, values := s.tensor(t, "grace.keys"), s.tensor(t, "grace.values")
	for i, x := range e.Codebook().codes {
		near(t, "key", x.Key, keys.Row(i), tolValue)
		near(t, "value", x.Value, values.Row(i), tolDelta)
	}

	s.logits(t, e, "grace.logits", tolDelta)
}

// TestOracleStatistics compares the second moments.
func TestOracleStatistics(t *testing.T) {
	for _, path := range oracle(t) {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			s := load(t, path)
			if len(s.Stats.Docs) == 0 {
				t.Skip("the documents are not given as tokens")
			}

			want := s.statistics(t)
			var blocks []int
			for b := range want.Moments {
				blocks = append(blocks, b)
			}

			got, err := Collect(context.Background(), s.m, s.Stats.Docs, blocks, nil)
			if err != nil {
				t.Fatal(err)
			}

			if got.Tokens != s.Stats.Tokens {
				t.Errorf("%d tokens, want %d", got.Tokens, s.Stats.Tokens)
			}
			for b := range want.Moments {
				near(t, "C", got.Moments[b].Data, want.Moments[b].Data, 1e-5) // sums of float32 products over a pass
			}
		})
	}
}
