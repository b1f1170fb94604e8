package peft

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// prefix is what PEFT puts before the names of the base's modules.
const prefix = "base_model.model."

// parts are the endings of the keys of low-rank factors.
var parts = []part{
	{".lora_A.weight", "A"},
	{".lora_B.weight", "B"},
	{".lora_B.bias", "bias"},
	{".lora_embedding_A", "tableA"},
	{".lora_embedding_B", "tableB"},
	{".lora_magnitude_vector", "magnitude"},
	{".lora_magnitude_vector.weight", "magnitude"},
	{".token_adapter.trainable_tokens_delta", "rows"},
}

// found are the tensors of one module, by part.
type found struct {
	first string // key, for messages
	keys  map[string]string
}

// reader brings configuration, tensors and modules together.
type reader struct {
	*settings
	file    *safetensors.File
	modules []adapter.Module
	byPath  map[string]int
	low     map[string]*found // by module path
	out     *adapter.Adapter
}

func (r *reader) read() error {
	for i, m := range r.modules {
		r.byPath[m.Path] = i
	}

	r.out = &adapter.Adapter{}

	for _, key := range r.file.Names() {
		if err := r.sort(key); err != nil {
			return err
		}
	}

	if err := r.match(); err != nil {
		return err
	}

	// In the base's order, not the file's, which sorts 10 before 2.
	for _, m := range r.modules {
		if f := r.low[m.Path]; f != nil {
			if err := r.addLow(m, f); err != nil {
				return err
			}
		}
	}

	if err := r.checkWhole(); err != nil {
		return err
	}

	r.out.Config = r.Config
	// Last: a tie joins parameters that must all be there.
	return r.out.Tie(r.modules)
}

// sort puts a tensor of the file where it belongs.
func (r *reader) sort(key string) error {
	name, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return fmt.Errorf("tensor %.200q: %w: the name does not start with %s", key, adapter.ErrFile, prefix)
	}

	for _, p := range r.form.parts {
		path, ok := strings.CutSuffix(name, p.ending)
		if !ok {
			continue
		}

		if p.part == "rows" {
			return r.addRows(key, path)
		}

		return r.sortPart(key, path, p.part)
	}

	// A variant of LoRA with more parts than these would be computed without them.
	if strings.Contains(name, ".lora_") {
		return fmt.Errorf("tensor %.200q: %w: no part of a LoRA that is known here", key, adapter.ErrUnsupported)
	}

	return r.addWhole(key, name)
}

// sortPart notes a part of a module's change.
func (r *reader) sortPart(key, path, part string) error {
	i, ok := r.byPath[path]
	if !ok {
		return fmt.Errorf("tensor %.200q: %w: it has no module %.200q that can be adapted", key, adapter.ErrBase, path)
	}

	// Factors of a table have names of their own and lie the other way round.
	table := r.modules[i].Table
	switch part {
	case "tableA", "tableB":
		if !table {
			return fmt.Errorf("tensor %.200q: %w: %s is no token table", key, adapter.ErrBase, path)
		}
		part = strings.TrimPrefix(part, "table")
	default:
		if table && part != "magnitude" {
			return fmt.Errorf("tensor %.200q: %w: %s is a token table, whose factors are called lora_embedding_A "+
				"and lora_embedding_B", key, adapter.ErrBase, path)
		}
	}

	f := r.low[path]
	if f == nil {
		f = &found{first: key, keys: map[string]string{}}
		r.low[path] = f
	}

	if other, twice := f.keys[part]; twice {
		return fmt.Errorf("tensor %.200q: %w: %.200q says the same", key, adapter.ErrFile, other)
	}

	f.keys[part] = key
	return nil
}

// match compares the modules of the file with those that the configuration targets.
func (r *reader) match() error {
	// Python's expressions can say more than Go's (lookahead); the file's own tensors are then the truth.
	if r.Targets.Regex != "" {
		if _, err := regexp.Compile(r.Targets.Regex); err != nil {
			r.notes = append(r.notes, fmt.Sprintf("target_modules %.100q cannot be followed (%v); the modules are "+
				"those of the file", r.Targets.Regex, err))
			r.Targets = adapter.Match{}
		}
	}

	if r.Targets.IsZero() {
		return r.matchFile()
	}

	list, unmatched, err := r.Fits(r.modules)
	if err != nil {
		return err
	}

	for _, n := range unmatched {
		r.notes = append(r.notes, fmt.Sprintf("target_modules: %.100q matches no module of the base", n))
	}

	list = r.withoutExperts(list)
	targeted := map[string]bool{}
	for _, m := range list {
		targeted[m.Path] = true

		if r.low[m.Path] == nil {
			// A wrong base is the likelier reason, and has a clearer error.
			if err := r.foreign(); err != nil {
				return err
			}
			return fmt.Errorf("%w: module %s is targeted, but there are no factors for it", adapter.ErrFile, m.Path)
		}
	}

	for _, m := range r.modules {
		f := r.low[m.Path]
		switch {
		case f == nil || targeted[m.Path]:
		// With tied training PEFT writes the head's factors though only the table is targeted, or the other way
		// round.
		case r.Tying && (m.Table || m.Role == arch.Head):
			r.nameTwin(m.Path, list)
		default:
			return fmt.Errorf("tensor %.200q: %w: the configuration does not target module %s", f.first,
				adapter.ErrFile, m.Path)
		}
	}

	if len(list) == 0 && len(r.WholeModules) == 0 && r.tokens == nil {
		return fmt.Errorf("%w: target_modules match no module of the base", adapter.ErrTarget)
	}

	return nil
}

// withoutExperts drops the experts of mixtures from the targeted modules where the file has factors for others
// but for no expert. Since version 5 of the transformers library keeps all experts of a block in one tensor,
// the PEFT library finds no module of an expert by its name and adapts the other ones, above all the shared
// expert, whose matrices are called like theirs; loading such a file it leaves the experts as they are.
func (r *reader) withoutExperts(list []adapter.Module) []adapter.Module {
	var rest []adapter.Module
	left := 0
	for _, m := range list {
		switch {
		case m.Expert < 0:
			rest = append(rest, m)
		case r.low[m.Path] != nil:
			return list
		default:
			left++
		}
	}

	if left == 0 || len(r.low) == 0 {
		return list
	}

	r.notes = append(r.notes, fmt.Sprintf("target_modules name %d matrices of experts, for which there are no "+
		"factors: they stay as they are, as PEFT leaves them", left))
	// Named one by one from here on, or the same patterns would take the experts in again when the adapter is used.
	r.Targets = adapter.Match{}
	for _, m := range rest {
		r.Targets.Names = append(r.Targets.Names, m.Path)
	}

	return rest
}

// foreign names the first factor whose shape is that of another base.
func (r *reader) foreign() error {
	for _, m := range r.modules {
		f := r.low[m.Path]
		if f == nil {
			continue
		}

		for _, side := range []struct {
			part      string
			dim, want int
		}{{"A", 1, m.In}, {"B", 0, m.Out}} {
			info, ok := r.file.Info(f.keys[side.part])
			if ok && len(info.Shape) == 2 && info.Shape[side.dim] != int64(side.want) {
				return fmt.Errorf("tensor %.200q: %w: shape %v, the base has %d channels there", f.keys[side.part],
					adapter.ErrBase, info.Shape, side.want)
			}
		}
	}

	return nil
}

// matchFile takes the modules of the file where the configuration does not name any that can be checked.
func (r *reader) matchFile() error {
	for _, m := range r.modules {
		if r.low[m.Path] != nil {
			r.Targets.Names = append(r.Targets.Names, m.Path)
		}
	}
	if len(r.low) == 0 && len(r.WholeModules) == 0 && r.tokens == nil {
		return fmt.Errorf("%w: nothing is targeted and there are no factors", adapter.ErrTarget)
	}
	return nil
}

// nameTwin adds a head that follows its table to the targets.
func (r *reader) nameTwin(path string, targeted []adapter.Module) {
	if len(r.Targets.Names) == 0 {
		r.Targets = adapter.Match{}
		for _, m := range targeted {
			r.Targets.Names = append(r.Targets.Names, m.Path)
		}
	}
	r.Targets.Names = append(r.Targets.Names, path)
}

// addLow reads the factors of a module.
func (r *reader) addLow(m adapter.Module, f *found) error {
	if r.Kind != adapter.LoRA {
		return r.addOwn(m, f)
	}

	for _, p := range []string{"A", "B"} {
		if f.keys[p] == "" {
			return fmt.Errorf("tensor %.200q: %w: module %s has no factor %s", f.first, adapter.ErrFile, m.Path, p)
		}
	}

	rankAlpha, err := r.RankAlpha()
	if err != nil {
		return err
	}

	// Patterns of ranks and alphas go by path; the scale follows from this module's own.
	rank, alpha := rankAlpha(m.Path)
	l := &adapter.Low{Module: m, Rank: rank, Alpha: alpha, Scale: r.ScaleOf(rank, alpha)}
	// Before the factors are read: a wrong rank makes wrong shapes, and is the better explanation.
	if err := r.checkRank(f.keys["A"], rank); err != nil {
		return err
	}

	pair := adapter.Plain{}
	if pair.A, err = r.matrix(f.keys["A"], rank, m.In); err != nil {
		return err
	}
	if pair.B, err = r.matrix(f.keys["B"], m.Out, rank); err != nil {
		return err
	}

	pair.A.Elements, pair.B.Elements = true, true
	l.Factors = pair
	if l.Bias, err = r.vector(f, "bias", r.OutputBias, "lora_bias", m); err != nil {
		return err
	}
	if l.Magnitude, err = r.vector(f, "magnitude", r.DoRA, "use_dora", m); err != nil {
		return err
	}

	r.out.Low = append(r.out.Low, l)
	return nil
}

// checkRank compares the rank in the file with that of the configuration.
func (r *reader) checkRank(key string, rank int) error {
	info, _ := r.file.Info(key)
	if len(info.Shape) == 2 && info.Shape[0] != int64(rank) {
		return fmt.Errorf("tensor %.200q: %w: rank %d, but the configuration gives %d", key, adapter.ErrFile,
			info.Shape[0], rank)
	}
	return nil
}

// vector reads a part of a module that an option asks for, or says that option and file disagree.
func (r *reader) vector(f *found, part string, wanted bool, option string, m adapter.Module) (*adapter.Param, error) {
	key := f.keys[part]
	switch {
	case wanted && key == "" && part == "bias" && m.Table, !wanted && key == "":
		return nil, nil
	case key == "":
		return nil, fmt.Errorf("tensor %.200q: %w: %s is set, but module %s has none of its tensors", f.first,
			adapter.ErrFile, option, m.Path)
	case !wanted:
		return nil, fmt.Errorf("tensor %.200q: %w: the configuration says %s: false", key, adapter.ErrFile, option)
	}

	return r.matrix(key, 1, m.Out)
}

// matrix reads a tensor of the file as F32. One row may stand there as a vector.
func (r *reader) matrix(key string, rows, cols int) (*adapter.Param, error) {
	info, _ := r.file.Info(key)
	want := []int64{int64(rows), int64(cols)}
	if !slices.Equal(info.Shape, want) && (rows != 1 || !slices.Equal(info.Shape, want[1:])) {
		return nil, fmt.Errorf("tensor %.200q: %w: shape %v, the base asks for %v", key, adapter.ErrBase, info.Shape,
			want)
	}
	p := adapter.NewParam(strings.TrimPrefix(key, prefix), rows, cols)
	return p, r.widen(p.Data(), key, info)
}

// widen copies a tensor as F32, and refuses what is not finite.
func (r *reader) widen(dst []float32, key string, info safetensors.Info) error {
	return r.file.View(key, func(data []byte) error {
		if err := dtype.Decode(dst, data, info.DType); err != nil {
			return fmt.Errorf("tensor %.200q: %w: %w", key, adapter.ErrFile, err)
		}
		if i := dtype.NonFinite(dst); i >= 0 {
			return fmt.Errorf("tensor %.200q: %w: element %d is %v", key, adapter.ErrFile, i, dst[i])
		}
		return nil
	})
}

// addWhole reads a tensor that replaces one of the base.
func (r *reader) addWhole(key, name string) error {
	plain := strings.Replace(name, ".base_layer.", ".", 1)
	dot := strings.LastIndexByte(plain, '.')
	if dot < 0 || plain[dot:] != ".weight" && plain[dot:] != ".bias" {
		return fmt.Errorf("tensor %.200q: %w: neither a part of a %s nor a weight or bias of the base", key,
			adapter.ErrFile, r.form.peftType)
	}

	path, kind := plain[:dot], plain[dot+1:]
	w := &adapter.Whole{Key: plain, Tensor: r.tensorOf(path, kind)}
	switch {
	case r.savesPart(path), kind == "bias" && r.Biases != adapter.NoBias:
	case kind == "weight" && strings.Contains(name, ".base_layer.") && r.isTable(path):
		w.Frozen = true
	case kind == "weight" && r.Tying && r.isHead(path):
		r.WholeModules = append(r.WholeModules, path) // follows the table, which is trained whole
	case kind == "weight" && r.isTable(path):
		w.Frozen = true
	default:
		return fmt.Errorf("tensor %.200q: %w: modules_to_save and bias do not ask for it", key, adapter.ErrFile)
	}

	info, _ := r.file.Info(key)
	w.Shape = info.Shape
	rows, cols, err := r.wholeShape(key, path, kind, info)
	if err != nil {
		return err
	}

	w.Value = adapter.NewParam(plain, rows, cols)
	w.Value.Frozen = w.Frozen
	r.out.Whole = append(r.out.Whole, w)

	return r.widen(w.Value.Data(), key, info)
}

// tensorOf is the name in the base's files of a module's weight or bias.
func (r *reader) tensorOf(path, kind string) string {
	if i, ok := r.byPath[path]; ok && !r.modules[i].Tied {
		switch m := r.modules[i]; {
		case kind == "weight":
			return m.Tensor
		case m.Bias != "":
			return m.Bias
		}
	}

	for _, m := range r.modules {
		if short, cut := strings.CutSuffix(m.Path, strings.TrimSuffix(m.Tensor, ".weight")); cut && short != "" &&
			m.Role != arch.Head {
			return strings.TrimPrefix(path, short) + "." + kind // files without the optional prefix
		}
	}

	return path + "." + kind
}

// savesPart reports whether modules_to_save takes a module: its path, or that of a module around it, ends with
// an entry.
func (r *reader) savesPart(path string) bool {
	for _, m := range r.WholeModules {
		for p := path; p != ""; {
			if strings.HasSuffix(p, m) {
				return true
			}
			p = p[:max(0, strings.LastIndexByte(p, '.'))]
		}
	}
	return false
}

// isTable reports whether a path is that of the token table or the head, which are saved along with their adapters.
func (r *reader) isTable(path string) bool {
	i, ok := r.byPath[path]
	return ok && (r.modules[i].Table || r.modules[i].Role == arch.Head)
}

// isHead reports whether a path is that of the head.
func (r *reader) isHead(path string) bool {
	i, ok := r.byPath[path]
	return ok && r.modules[i].Role == arch.Head || !ok && path == "lm_head"
}

// wholeShape gives the rows and columns of a whole tensor and compares them with the base's where the module is known.
func (r *reader) wholeShape(key, path, kind string, info safetensors.Info) (rows, cols int, err error) {
	var want []int64
	if i, ok := r.byPath[path]; ok {
		m := r.modules[i]
		switch {
		case kind == "bias":
			want = []int64{int64(m.Out)}
		case m.Table, m.Transposed:
			want = []int64{int64(m.In), int64(m.Out)}
		// nn.Embedding is [vocab, width], and Conv1D of GPT-2 [in, out]; nn.Linear is [out, in].
		default:
			want = []int64{int64(m.Out), int64(m.In)}
		}
	}

	if want != nil && !slices.Equal(info.Shape, want) {
		return 0, 0, fmt.Errorf("tensor %.200q: %w: shape %v, the base asks for %v", key, adapter.ErrBase, info.Shape,
			want)
	}

	switch len(info.Shape) {
	case 1:
		return 1, int(info.Shape[0]), nil
	case 2:
		return int(info.Shape[0]), int(info.Shape[1]), nil
	}

	return 0, 0, fmt.Errorf("tensor %.200q: %w: shape %v is neither a vector's nor a matrix'", key, adapter.ErrFile,
		info.Shape)
}

// checkWhole says what the configuration asks for and the file lacks.
func (r *reader) checkWhole() error {
	for _, name := range r.WholeModules {
		if !slices.ContainsFunc(r.out.Whole, func(w *adapter.Whole) bool {
			one := reader{settings: &settings{Config: adapter.Config{WholeModules: []string{name}}}}
			return one.savesPart(w.Key[:strings.LastIndexByte(w.Key, '.')])
		}) {
			return fmt.Errorf("%w: modules_to_save: there is no tensor of %.100q", adapter.ErrFile, name)
		}
	}

	if r.Biases == adapter.NoBias {
		return nil
	}

	for _, l := range r.out.Low {
		bias := l.Module.Bias
		if bias != "" && !slices.ContainsFunc(r.out.Whole, func(w *adapter.Whole) bool { return w.Tensor == bias }) {
			return fmt.Errorf("%w: the configuration says bias: %s, but there is no bias of %s", adapter.ErrFile,
				r.Biases, l.Module.Path)
		}
	}

	return nil
}
