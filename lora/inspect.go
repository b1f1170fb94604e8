package lora

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
	"github.com/modelcompress/compress/lora/internal/mosfile"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// Inspection says what an adapter's folder holds.
type Inspection struct {
	Adapter   string         `json:"adapter"`
	Kind      string         `json:"kind"` // one of Kinds but full
	Base      string         `json:"base,omitempty"`
	Checked   string         `json:"checked,omitempty"` // folder of the base that everything fits
	RSLoRA    bool           `json:"use_rslora"`
	DoRA      bool           `json:"use_dora"`
	Bias      string         `json:"bias"`
	Targets   any            `json:"target_modules"`
	Rank      int            `json:"rank"`    // the largest
	Trained   int64          `json:"trained"` // parameters
	Bytes     int64          `json:"bytes"`   // of the weights' file
	DTypes    []string       `json:"dtypes"`
	Memory    Memory         `json:"memory"` // in a Bank
	Modules   []ModuleReport `json:"modules"`
	Types     []TypeReport   `json:"types"`
	Whole     []WholeReport  `json:"whole,omitempty"`
	TokenRows int            `json:"token_rows,omitempty"`
	Shards    *ShardReport   `json:"shards,omitempty"` // of a Mixture of Shards
	Notes     []string       `json:"notes,omitempty"`
}

// ModuleReport is the low-rank change of one module.
type ModuleReport struct {
	Path  string  `json:"path"`
	In    int     `json:"in"`
	Out   int     `json:"out"`
	Rank  int     `json:"rank"`
	Alpha float64 `json:"alpha"`
	Scale float64 `json:"scale"`
	Norm  float64 `json:"norm"` // Frobenius norm of scale·B·A
}

// TypeReport sums up the modules whose paths end alike.
type TypeReport struct {
	Name    string  `json:"name"`
	Modules int     `json:"modules"`
	Ranks   []int   `json:"ranks"`
	Norm    float64 `json:"norm"` // root of the mean square of their changes' norms
}

// WholeReport is a tensor that replaces one of the base.
type WholeReport struct {
	Tensor   string  `json:"tensor"`
	Shape    []int64 `json:"shape"`
	SavedFor string  `json:"saved_for"` // "trained", or "a table" that is saved along with its change
}

// ShardReport is what is particular to a Mixture of Shards.
type ShardReport struct {
	EquivalentRank   int    `json:"equivalent_rank"`
	Shards           int    `json:"shards"`
	Private          int    `json:"private_rank"`
	PairDissociation bool   `json:"pair_dissociation"`
	Sampling         string `json:"sampling"`
	Dead             int    `json:"dead"` // public shards that no block uses
}

// Inspect looks at the adapter in a folder, and with a model's folder also at whether everything fits it. The
// errors wrap this package's or those of package safetensors.
func Inspect(ctx context.Context, dir, model string) (*Inspection, error) {
	base, err := openBase(ctx, model)
	if err != nil {
		return nil, err
	}
	defer closeBase(base)

	a, notes, err := load(dir, base)
	if err != nil {
		return nil, err
	}

	c := &a.Config
	remark, err := onStored(ctx, c, base)
	if err != nil {
		return nil, err
	}

	if remark != "" {
		notes = append(notes, remark)
	}

	r := &Inspection{
		Adapter: dir, Kind: string(c.Kind), Base: c.Base, Checked: model, RSLoRA: c.RSLoRA, DoRA: c.DoRA,
		Bias:    string(c.Biases),
		Targets: targetValue(c.Targets), Trained: a.Count(), Notes: notes, Modules: []ModuleReport{},
	}

	r.Memory = memoryOf(dir, a)
	if r.Bytes, r.DTypes, err = weightsOf(dir); err != nil {
		return nil, err
	}

	for _, l := range a.Low {
		r.Modules = append(r.Modules,
			ModuleReport{l.Module.Path, l.Module.In, l.Module.Out, l.Rank, l.Alpha, l.Scale, changeNorm(l)})
		r.Rank = max(r.Rank, l.Rank)
	}

	r.Types = typesOf(r.Modules)
	r.others(a)
	return r, nil
}

// others reports on what is no low-rank change.
func (r *Inspection) others(a *adapter.Adapter) {
	for _, w := range a.Whole {
		kind := "trained"
		if w.Frozen {
			kind = "a table"
		}
		r.Whole = append(r.Whole, WholeReport{w.Tensor, w.Shape, kind})
	}

	for _, rows := range a.Rows {
		r.TokenRows += len(rows.IDs)
	}

	if c := &a.Config; c.Kind == adapter.MoS {
		r.Shards = &ShardReport{
			c.MoS.EquivalentRank, c.MoS.Shards, c.MoS.Private, c.MoS.PairDissociation,
			string(c.MoS.Sampling), 0,
		}
		for _, p := range mos.Pools(a) {
			da, db := p.Dead()
			r.Shards.Dead += da + db
		}
	}
}

// targetValue is target_modules as a configuration says it.
func targetValue(m adapter.Match) any {
	switch {
	case m.All:
		return "all-linear"
	case m.Regex != "":
		return m.Regex
	}
	return m.Names
}

// weightsOf gives the size of the weights' file and its element types.
func weightsOf(dir string) (int64, []string, error) {
	path := dir // of an adapter in one file
	if !isFile(dir) {
		path = filepath.Join(dir, peft.WeightsName)
	}
	stat, err := os.Stat(path)
	if err != nil {
		return 0, nil, err
	}
	if path == dir {
		types, err := fileTypes(path)
		return stat.Size(), types, err
	}

	f, err := safetensors.Open(filepath.Join(dir, mosfile.ModelName))
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()

	var types []string
	for _, n := range f.Names() {
		info, _ := f.Info(n)
		if t := info.DType.String(); !slices.Contains(types, t) {
			types = append(types, t)
		}
	}

	slices.Sort(types)
	return stat.Size(), types, nil
}

// changeNorm is the Frobenius norm of s·B·A, from the Gram matrices of both factors: trace(BᵀB·AAᵀ).
func changeNorm(l *adapter.Low) float64 {
	if s, ok := l.Factors.(adapter.Sparse); ok {
		sum := 0.0
		for _, v := range s.Value.Data() {
			sum += float64(v) * float64(v)
		}
		return math.Abs(l.Scale) * math.Sqrt(sum)
	}

	a, b := l.Pair()
	x, y := linalg.FromMat(a), linalg.FromMat(b)
	ga, gb := linalg.New(l.Rank, l.Rank), linalg.New(l.Rank, l.Rank)
	linalg.Solver{}.Mul(ga, x, x, linalg.Product{TransB: true})
	linalg.Solver{}.Mul(gb, y, y, linalg.Product{TransA: true})

	trace := 0.0
	for i := range l.Rank {
		for j := range l.Rank {
			trace += gb.At(i, j) * ga.At(j, i)
		}
	}

	return math.Abs(l.Scale) * math.Sqrt(max(trace, 0))
}

// typesOf groups modules by the last part of their paths.
func typesOf(list []ModuleReport) []TypeReport {
	types := []TypeReport{}
	for _, m := range list {
		name := m.Path[strings.LastIndexByte(m.Path, '.')+1:]
		i := slices.IndexFunc(types, func(t TypeReport) bool { return t.Name == name })
		if i < 0 {
			i = len(types)
			types = append(types, TypeReport{Name: name})
		}

		t := &types[i]
		t.Modules++
		t.Norm += m.Norm * m.Norm
		if !slices.Contains(t.Ranks, m.Rank) {
			t.Ranks = append(t.Ranks, m.Rank)
		}
	}

	for i := range types {
		types[i].Norm = math.Sqrt(types[i].Norm / float64(types[i].Modules))
		slices.Sort(types[i].Ranks)
	}

	return types
}
