package quantize

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// fold is a place in a block where channels can be divided by factors on one side and multiplied by them on the other
// without a change of what the model computes: between a norm and the matrices that read it, between the values of
// attention and its output matrix, and inside an MLP whose up half reaches down unbent.
type fold struct {
	from     string // what is divided: a norm's gain, or a matrix
	bias     string // divided with it; "": there is none
	norm     bool
	channels int
	rows     []int       // of a matrix: the row of each channel
	readers  []lm.Linear // whose columns are multiplied
	beside   []string    // matrices [n, channels] that read the same and are no linears: routers
	tied     []int       // channel of each column of the readers, where several share one; nil: each has its own
}

// channel is the channel of a column of the readers.
func (f *fold) channel(j int) int {
	if f.tied == nil {
		return j
	}
	return f.tied[j]
}

// columns gives the factors of the readers' columns; nil stays nil.
func (f *fold) columns(s []float32) []float32 {
	if f.tied == nil || s == nil {
		return s
	}
	out := make([]float32, len(f.tied))
	for j, c := range f.tied {
		out[j] = s[c]
	}
	return out
}

// parameters are those of a block by what they are for.
type parameters struct {
	c       *arch.Config
	linears []lm.Linear
	all     []arch.Param
}

// name is the parameter of a role; "" where there is none.
func (p *parameters) name(r arch.Role, expert int, bias bool) string {
	for _, a := range p.all {
		if a.Role == r && a.Expert == expert && a.Bias == bias {
			return a.Name
		}
	}
	return ""
}

// of are the matrices of some roles, of all experts.
func (p *parameters) of(roles ...arch.Role) (list []lm.Linear) {
	for _, lin := range p.linears {
		if slices.Contains(roles, lin.Role) {
			list = append(list, lin)
		}
	}
	return list
}

// foldsOf finds the folds of a block.
func foldsOf(m *lm.Model, l int) []*fold {
	p := &parameters{c: m.Config(), linears: m.Linears(l), all: m.Params(l)}
	list := append(p.afterNorms(), p.values())
	for _, roles := range [][3]arch.Role{
		{arch.Gate, arch.Up, arch.Down},
		{arch.SharedGate, arch.SharedUp, arch.SharedDown},
		{arch.GateUp, arch.GateUp, arch.Down},
		{arch.SharedGateUp, arch.SharedGateUp, arch.SharedDown},
	} {
		list = append(list, p.insides(roles[0], roles[1], roles[2])...)
	}

	return slices.DeleteFunc(list, func(f *fold) bool {
		return f == nil || f.from == "" || len(f.readers) == 0 ||
			slices.ContainsFunc(f.readers, func(lin lm.Linear) bool { return lin.Transposed })
	})
}

// afterNorms are the folds between norms and what reads them.
func (p *parameters) afterNorms() (list []*fold) {
	add := func(role arch.Role, beside []string, readers ...arch.Role) {
		f := &fold{
			from: p.name(role, -1, false), bias: p.name(role, -1, true), norm: true, readers: p.of(readers...),
			beside: slices.DeleteFunc(beside, func(name string) bool { return name == "" }),
		}
		if len(f.readers) > 0 {
			f.channels = f.readers[0].In
		}
		list = append(list, f)
	}

	attention := []arch.Role{arch.Q, arch.K, arch.V, arch.QKV, arch.QA, arch.KVA}
	mlp := []arch.Role{arch.Gate, arch.Up, arch.GateUp, arch.SharedGate, arch.SharedUp, arch.SharedGateUp}
	routers := []string{p.name(arch.Router, -1, false), p.name(arch.SharedRouter, -1, false)}
	switch {
	case p.c.PostNorm: // the branches read the stream itself
	case p.c.Parallel && p.name(arch.MLPNorm, -1, false) == "":
		add(arch.AttnNorm, routers, append(attention, mlp...)...)
	default:
		add(arch.AttnNorm, nil, attention...)
		add(arch.MLPNorm, routers, mlp...)
	}

	add(arch.QANorm, nil, arch.QB)
	add(arch.KVANorm, nil, arch.KVB)
	return list
}

// values is the fold between the values of attention and its output: the query heads that share values share factors.
func (p *parameters) values() *fold {
	c := p.c
	out := p.of(arch.O)
	if len(out) != 1 || c.KVRank > 0 || c.ClipQKV != 0 || out[0].In != c.Heads*c.HeadDim || c.KVHeads == 0 {
		return nil
	}

	role := arch.V
	if len(p.of(arch.QKV)) > 0 {
		role = arch.QKV
	}
	f := &fold{
		from: p.name(role, -1, false), bias: p.name(role, -1, true), channels: c.KVHeads * c.HeadDim, readers: out,
		tied: make([]int, out[0].In),
	}

	share := c.Heads / c.KVHeads
	for j := range f.tied {
		f.tied[j] = j/c.HeadDim/share*c.HeadDim + j%c.HeadDim
	}
	for k := range f.channels {
		head, at := k/c.HeadDim, k%c.HeadDim
		row := k
		switch {
		case role == arch.V:
		case c.Arch.QKV == arch.HeadBlocks:
			row = (3*head+2)*c.HeadDim + at
		case c.Arch.QKV == arch.Groups && c.KVHeads > 1:
			row = (head*(share+2)+share+1)*c.HeadDim + at
		default:
			row = (c.Heads+c.KVHeads)*c.HeadDim + k
		}
		f.rows = append(f.rows, row)
	}

	return f
}

// insides are the folds of MLPs between the half that is not bent, up, and down. Without a gate up is bent itself, and
// only ReLU lets factors through.
func (p *parameters) insides(gate, up, down arch.Role) (list []*fold) {
	c := p.c
	if c.Arch.Gate == arch.ClampedGate {
		return nil
	}
	for _, last := range p.of(down) {
		f := &fold{
			from: p.name(up, last.Expert, false), bias: p.name(up, last.Expert, true), channels: last.In,
			readers: []lm.Linear{last},
		}
		if p.name(gate, last.Expert, false) == "" && c.Activation != arch.ReLU {
			continue
		}
		first := 0
		if gate == up {
			first = last.In // the gate's rows come first
		}
		for k := range last.In {
			f.rows = append(f.rows, first+k)
		}
		list = append(list, f)
	}
	return list
}

// factors are what the rows and columns of a matrix are divided and multiplied by; nil: by 1.
type factors struct{ rows, columns []float32 }

// apply changes a matrix [out, in], F32 in host memory.
func (f *factors) apply(w kernels.Mat, threads int) {
	mmapsafe.Split(threads, w.Rows, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := w.RowF32(i)
			by := float32(1)
			if f.rows != nil {
				by = 1 / f.rows[i]
			}
			for j := range row {
				v := row[j]
				if f.columns != nil {
					v *= f.columns[j]
				}
				row[j] = v * by
			}
		}
	})
	w.Buf.Changed()
}

// divideRows notes the factors of some rows of a matrix.
func (f *factors) divideRows(n int, rows []int, s []float32) {
	if f.rows == nil {
		f.rows = slices.Repeat([]float32{1}, n)
	}
	for k, i := range rows {
		f.rows[i] *= s[k]
	}
}

// multiplyColumns notes the factors of all columns of a matrix.
func (f *factors) multiplyColumns(s []float32) {
	if f.columns == nil {
		f.columns = slices.Repeat([]float32{1}, len(s))
	}
	for j, v := range s {
		f.columns[j] *= v
	}
}

// scaling is the factors of a block's folds on their way into its parameters.
type scaling struct {
	matrices map[string]*factors
	floats   map[string]kernels.Mat // new values of parameters that stay floats, F32 in host memory
}

func newScaling() *scaling {
	return &scaling{matrices: map[string]*factors{}, floats: map[string]kernels.Mat{}}
}

func (s *scaling) matrix(name string) *factors {
	f := s.matrices[name]
	if f == nil {
		f = &factors{}
		s.matrices[name] = f
	}
	return f
}

// columnsOf are the factors of a matrix' columns; nil: all are 1.
func (s *scaling) columnsOf(name string) []float32 {
	if s == nil || s.matrices[name] == nil {
		return nil
	}
	return s.matrices[name].columns
}

// fold takes the factors of a fold in. A norm's gain is stored with the digits of its type; what that takes from a
// factor, the readers' factors are spared, so that the two sides cancel out.
func (w *walk) fold(s *scaling, f *fold, by []float32) error {
	if f.norm {
		gain, err := w.float(s, f.from)
		if err != nil {
			return err
		}
		by = w.gains(gain.RowF32(0), by, f.from)
	} else {
		rows, err := w.m.Param(f.from)
		if err != nil {
			return err
		}
		s.matrix(f.from).divideRows(rows.Rows, f.rows, by)
	}

	if f.bias != "" {
		bias, err := w.float(s, f.bias)
		if err != nil {
			return err
		}
		for k, v := range by {
			at := k
			if f.rows != nil {
				at = f.rows[k]
			}
			bias.RowF32(0)[at] /= v
		}
	}

	columns := f.columns(by)
	for _, lin := range f.readers {
		s.matrix(lin.Name).multiplyColumns(columns)
	}
	for _, name := range f.beside {
		s.matrix(name).multiplyColumns(columns)
	}
	return nil
}

// float is a parameter that stays a float, to be changed.
func (w *walk) float(s *scaling, name string) (kernels.Mat, error) {
	if m, ok := s.floats[name]; ok {
		return m, nil
	}
	stored, err := w.m.Param(name)
	if err != nil {
		return kernels.Mat{}, err
	}
	m, err := hostmat.F32(w.dev, stored)
	if err == nil {
		s.floats[name] = m
	}
	return m, err
}

// gains divides a norm's gains by factors, and gives the factors that the rounded gains are divided by.
func (w *walk) gains(gain, by []float32, name string) []float32 {
	info, _ := w.m.Info(name)
	plus := float32(0)
	if w.m.Config().Arch.Norm == arch.RMSPlusOne {
		plus = 1
	}

	exact := make([]float32, len(by))
	for k, s := range by {
		was := gain[k] + plus
		now := rounded(was/s-plus, info.DType)
		exact[k] = was / (now + plus)
		if was == 0 || !(exact[k] > 0) || math.IsInf(float64(exact[k]), 0) { // nothing goes through the channel
			exact[k] = 1
			continue
		}
		gain[k] = now
	}
	return exact
}

// rounded is a number of a type.
func rounded(v float32, d safetensors.DType) float32 {
	switch d {
	case safetensors.BF16:
		return kernels.FromBF16(kernels.ToBF16(v))
	case safetensors.F16:
		return kernels.FromF16(kernels.ToF16(v))
	}
	return v
}

// settle finishes the parameters of a block's folds that stay floats: the model computes with them from here on, and
// the output has them.
func (w *walk) settle(l int) error {
	s := w.scaling
	for _, name := range w.floatsOf(l) {
		m, err := w.float(s, name)
		if err != nil {
			return err
		}
		if f := s.matrices[name]; f != nil {
			f.apply(m, w.threads)
		}

		own, err := w.m.MutableParam(name)
		if err == nil {
			err = hostmat.Store(w.dev, own, m, false)
		}
		if err == nil {
			err = w.ops.Sync()
		}
		if err != nil {
			return err
		}

		data, err := hostmat.Bytes(w.dev, own)
		if err != nil {
			return err
		}
		if err := w.output.folder.Writer().WriteTensor(name, data); err != nil {
			return err
		}
	}
	return nil
}

// floatsOf lists the parameters of a block's folds that stay floats, each once.
func (w *walk) floatsOf(l int) (names []string) {
	add := func(list ...string) {
		for _, name := range list {
			if name != "" && !w.rounds[name] && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, f := range w.foldsOf(l) {
		add(f.from, f.bias)
		add(f.beside...)
		for _, lin := range f.readers {
			add(lin.Name)
		}
	}
	return names
}

// foldsOf lists the folds of a block that the run uses: those with a matrix that is quantised behind them, and nothing
// in them that shares its place in a file with other parameters.
func (w *walk) foldsOf(l int) (list []*fold) {
	if !w.o.folds() || len(w.chosen[l]) == 0 {
		return nil
	}

	apart := func(name string) bool {
		if name == "" || w.rounds[name] {
			return true
		}
		info, _ := w.m.Info(name)
		stored, _ := w.source.Place(name)
		return stored == name && info.DType != safetensors.F64
	}

	for _, f := range foldsOf(w.m, l) {
		ok := apart(f.from) && apart(f.bias) && (f.norm || w.o.Smooth == 0)
		some := false
		for _, lin := range f.readers {
			ok = ok && apart(lin.Name)
			some = some || w.rounds[lin.Name]
		}
		for _, name := range f.beside {
			ok = ok && apart(name)
		}
		if ok && some {
			list = append(list, f)
		}
	}
	return list
}

// restoreFloats takes the parameters of a block's folds from an interrupted run.
func (w *walk) restoreFloats(l int) error {
	for _, name := range w.floatsOf(l) {
		file, err := w.output.folder.Open(name)
		if err != nil {
			return err
		}
		data, err := file.Bytes(name)
		if err == nil {
			err = w.take(name, data)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// take lets the model compute with the stored bytes of a parameter.
func (w *walk) take(name string, data []byte) error {
	own, err := w.m.MutableParam(name)
	if err != nil {
		return err
	}
	// The file is mapped, so a lost page is an error within the group.
	copied := make([]byte, len(data))
	if err := mmapsafe.Do(func() error { copy(copied, data); return nil }); err != nil {
		return err
	}
	if err := w.dev.Upload(own.Buf, own.Off, copied); err != nil {
		return err
	}
	own.Buf.Changed()
	return nil
}

// checkFolds refuses a model whose structure has no place for factors.
func (w *walk) checkFolds() error {
	if !w.o.folds() {
		return nil
	}

	var without []string
	for l := range w.chosen {
		read := map[string]bool{}
		for _, f := range w.foldsOf(l) {
			for _, lin := range f.readers {
				read[lin.Name] = true
			}
		}
		for _, lin := range w.chosen[l] {
			if role := string(lin.Role); !read[lin.Name] && !slices.Contains(without, role) {
				without = append(without, role)
			}
		}
		if len(read) > 0 {
			w.folded++
		}
	}

	if w.folded == 0 {
		return fmt.Errorf("%w: %s: the structure of %s has no place for factors of inputs", ErrOptions, w.o.Measuring(),
			w.m.Config().ModelType)
	}
	if len(without) > 0 && w.o.Smooth == 0 {
		w.report.Notes = append(w.report.Notes, fmt.Sprintf("the inputs of these matrices got no factors, since "+
			"nothing before them can take these out: %s", strings.Join(without, ", ")))
	}
	return nil
}
