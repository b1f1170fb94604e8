package checkpoint

import (
	"context"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/arch"
)

// Inspection says what a checkpoint holds.
type Inspection struct {
	Path         string `json:"path"`
	Architecture string `json:"architecture,omitempty"`
	// why there is no architecture although there is a configuration
	Note       string `json:"note,omitempty"`
	Blocks     int    `json:"blocks,omitempty"`
	Hidden     int    `json:"hidden,omitempty"`
	Heads      int    `json:"heads,omitempty"`
	KVHeads    int    `json:"kv_heads,omitempty"`
	Vocabulary int    `json:"vocabulary,omitempty"`
	Parameters int64  `json:"parameters"`
	Tensors    int    `json:"tensors"`
	Bytes      int64  `json:"bytes"` // as stored
	// how values are stored that are decoded; the tensors are what they are decoded to
	Quantisation string   `json:"quantization,omitempty"`
	Files        []string `json:"files"`
	// zeros of the blocks' matrices (of all tensors without an architecture); nil where not all are counted
	Sparsity *float64         `json:"sparsity,omitempty"`
	DTypes   map[string]int64 `json:"dtypes"` // elements of each type
	Roles    []*RoleReport    `json:"roles"`
	List     []TensorReport   `json:"list"`
	// what a GGUF file says, where it is not understood to the end
	Metadata  []weights.Pair `json:"metadata,omitempty"`
	Verified  []string       `json:"verified,omitempty"`
	Remarks   []string       `json:"findings,omitempty"`            // what verifying found that does no harm
	Uncounted []string       `json:"uncounted_dtypes,omitempty"`    // types whose zeros are not counted
	Unknown   []string       `json:"unknown_config_keys,omitempty"` // of config.json; they have no effect
	// unknown keys that look like misspellings, each with the one that is meant
	Misspelt map[string]string `json:"misspelt_config_keys,omitempty"`
}

// RoleReport sums up the tensors that do the same.
type RoleReport struct {
	Role     string   `json:"role"`
	Tensors  int      `json:"tensors"`
	Elements int64    `json:"elements"`
	DType    string   `json:"dtype"`           // all of them, if they differ
	Zeros    *int64   `json:"zeros,omitempty"` // nil where not all are counted
	Sparsity *float64 `json:"sparsity,omitempty"`
	linear   bool
}

// TensorReport is one tensor.
type TensorReport struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"` // as stored: "BF16", …
	Shape []int64 `json:"shape"`
	Role  string  `json:"role"`            // what the architecture uses it for, see package arch; "" where that is unknown
	Zeros *int64  `json:"zeros,omitempty"` // nil: not counted
	// the tensor of the files that it lies in, where that holds others too
	Stored    string `json:"stored,omitempty"`
	Format    string `json:"format,omitempty"`     // in which a quantised one is stored
	Size      int64  `json:"bytes,omitempty"`      // in the file, where a GGUF file's own tensors are shown
	Packed    bool   `json:"packed,omitempty"`     // stored as a bitmask and the values that are left
	NonFinite string `json:"non_finite,omitempty"` // place of the first NaN or infinity
	values    string // the tensor that holds the values
	opaque    bool   // nothing decodes it
	left      int64  // zeros that packing left out
	file      string
	role      *RoleReport
}

func newInspection(path string, src *apart, c *arch.Config, parts map[string]*packed) *Inspection {
	r := &Inspection{
		Path: path, Tensors: len(src.Source.Names()), Bytes: src.DataSize(), Files: src.Shards(),
		DTypes: map[string]int64{}, Quantisation: src.Quantisation(),
	}
	var table *roleTable
	if c != nil {
		r.Architecture = c.ModelType
		r.Blocks = c.Layers
		r.Hidden = c.Hidden
		r.Heads = c.Heads
		r.KVHeads = c.KVHeads
		r.Vocabulary = c.Vocab
		r.Unknown, table = c.Unknown, newRoleTable(c.Arch)
		for _, key := range c.Unknown {
			if meant := c.Meant(key); meant != "" {
				if r.Misspelt == nil {
					r.Misspelt = map[string]string{}
				}
				r.Misspelt[key] = meant
			}
		}
	}

	roles := map[string]*RoleReport{}
	for _, name := range src.Names() {
		info, _ := src.Info(name)
		t := TensorReport{Name: name, Shape: info.Shape, values: name, file: src.File(src.stored(name))}
		if stored := src.stored(name); stored != name {
			t.Stored = stored
		}
		if m := src.Matrix(src.stored(name)); m != nil {
			t.Format = m.Format
		}

		if p := parts[name]; p != nil {
			if name != p.module+partBitmask {
				continue
			}

			t.Name = p.module + ".weight"
			t.Shape = []int64{p.rows, p.cols}
			t.Packed = true
			t.values = p.module + partValues
			info.DType, t.left = p.dtype, p.rows*p.cols-p.nonZero
		}

		t.DType = info.DType.String()
		r.add(t, table, roles)
	}

	for _, o := range src.Opaque() {
		r.Tensors++
		r.add(TensorReport{
			Name: o.Name, Shape: o.Shape, DType: o.Type, Format: o.Type, opaque: true, file: src.File(o.Name),
		}, table, roles)
	}

	return r
}

// add counts a tensor, under its role.
func (r *Inspection) add(t TensorReport, table *roleTable, roles map[string]*RoleReport) {
	var linear bool
	t.Role, linear = roleLabel(table, t.Name)
	role := roles[t.Role]
	if role == nil {
		role = &RoleReport{Role: t.Role, linear: linear || table == nil}
		roles[t.Role] = role
		r.Roles = append(r.Roles, role)
	}

	t.role = role
	n := product(t.Shape)
	role.Tensors++
	role.Elements += n
	if !strings.Contains(role.DType, t.DType) {
		role.DType = strings.TrimPrefix(role.DType+", "+t.DType, ", ")
	}

	r.DTypes[t.DType] += n
	if table == nil || table.find(t.Name) != nil {
		r.Parameters += n
	}

	r.List = append(r.List, t)
}

// roleLabel names what a tensor does; biases are told from weights.
func roleLabel(table *roleTable, name string) (label string, linear bool) {
	if table == nil {
		return "tensor", false
	}

	t := table.find(name)
	switch {
	case t == nil && table.arch.IsBuffer(name):
		return "buffer", false
	case t == nil:
		return "unknown", false
	}

	return strings.TrimSpace(string(t.Role) + " " + t.Part), t.Part == "" && t.Role.Linear() && t.Role != arch.Router
}

// readValues counts zeros and looks for values that are not finite.
func (r *Inspection) readValues(ctx context.Context, src *apart, e env) error {
	s, err := newScanner(ctx, e.device)
	if err != nil {
		return err
	}

	var done, total int64
	for i := range r.List {
		info, _ := src.Info(r.List[i].values) // nothing of an opaque one
		total += info.Size
	}

	for i := range r.List {
		t := &r.List[i]
		if t.opaque {
			continue
		}

		info, _ := src.Info(t.values)
		got, err := s.scan(src, info)
		if err != nil {
			return err
		}

		if got.zeros >= 0 {
			zeros := t.left + got.zeros
			t.Zeros = &zeros
		} else if name := info.DType.String(); !slices.Contains(r.Uncounted, name) {
			r.Uncounted = append(r.Uncounted, name)
		}

		if got.bad >= 0 {
			t.NonFinite = index(got.bad, info.Shape)
		}

		done += info.Size
		e.progress("reading", done, total)
	}

	r.sumZeros()
	return nil
}

// sumZeros adds the zeros up, for every role and for the matrices of the blocks.
func (r *Inspection) sumZeros() {
	var matrices zeroSum
	roles := map[*RoleReport]*zeroSum{}
	for i := range r.List {
		t := &r.List[i]
		if roles[t.role] == nil {
			roles[t.role] = &zeroSum{}
		}

		roles[t.role].add(t)
		if t.role.linear {
			matrices.add(t)
		}
	}

	for role, sum := range roles {
		role.Zeros, role.Sparsity = sum.result()
	}

	_, r.Sparsity = matrices.result()
}

// zeroSum adds up the zeros of tensors.
type zeroSum struct {
	zeros, elements int64
	unknown         bool
}

func (s *zeroSum) add(t *TensorReport) {
	s.elements += product(t.Shape)
	if t.Zeros == nil {
		s.unknown = true
		return
	}
	s.zeros += *t.Zeros
}

// result is nil where zeros were not counted.
func (s *zeroSum) result() (zeros *int64, sparsity *float64) {
	if s.unknown {
		return nil, nil
	}
	return &s.zeros, share(s.zeros, s.elements)
}

func share(a, b int64) *float64 {
	f := 0.0
	if b > 0 {
		f = float64(a) / float64(b)
	}
	return &f
}
