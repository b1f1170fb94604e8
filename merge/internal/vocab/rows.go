package vocab

import (
	"fmt"
	"sync"

	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Row says what a row of a model's token table becomes in the output.
type Row struct {
	Kind   RowKind
	Source int   // of Stored: index into the tensor's sources
	Row    int64 // of Stored: the row there
}

// RowKind is the kind of a row.
type RowKind uint8

// The kinds of rows.
const (
	Stored  RowKind = iota // a row of a source
	Zero                   // zeros
	Mean                   // the mean over the sources that have the token
	Padding                // the mean over all rows of tokens of this source
)

// Rows mapping the rows of one tensor's sources to those of the output. It is safe for use by several goroutines.
type Rows struct {
	v       *Vocabulary
	mapping *mapping
	n       int64
	means   []meanRow // by source: for padding
}

// meanRow is the mean of a source's rows, computed when it is needed.
type meanRow struct {
	sync.Mutex
	row []float32
}

// mapping is what the tensors over the same models share.
type mapping struct {
	own      [][]int32   // by source and id: the row of a token, -1 if the source lacks it
	defaults map[int]Row // by id: the row for sources that lack the token, or for all
	forced   map[int]bool
}

// For gives the rows of a tensor over the vocabulary. The error names a rule whose source this tensor does not have.
func (v *Vocabulary) For(t *plan.Tensor) (*Rows, error) {
	if v.Rows == 0 || t.VocabAxis != 0 {
		return nil, fmt.Errorf("%s has no rows to arrange", t.Name)
	}

	key := fmt.Sprint(t.Base)
	for _, s := range t.Sources {
		key += fmt.Sprintf(" %d:%d", s.Model, s.Info.Shape[0])
	}

	m := v.maps[key]
	if m == nil {
		var err error
		if m, err = v.newMaps(t); err != nil {
			return nil, err
		}
		v.maps[key] = m
	}

	return &Rows{v: v, mapping: m, n: v.Rows, means: make([]meanRow, len(t.Sources))}, nil
}

// newMaps works out the rows for a set of sources.
func (v *Vocabulary) newMaps(t *plan.Tensor) (*mapping, error) {
	m := &mapping{defaults: map[int]Row{}, forced: map[int]bool{}}
	for _, s := range t.Sources {
		own := make([]int32, len(v.ids))
		for id, token := range v.ids {
			own[id] = -1
			// Two tokens can share an id; only the one that the output has under it counts.
			if row, ok := v.perModel[s.Model].ids[token]; ok && int64(row) < s.Info.Shape[0] && v.out.ids[token] == id {
				own[id] = int32(row)
			}
		}

		m.own = append(m.own, own)
	}

	r := v.plan.Document.Reader()
	for id := range v.ids {
		x := v.rules[id]
		owners, first := m.owners(id)
		// Where every model has the token, its rows are merged as they are, unless the rule is forced.
		if owners == len(t.Sources) && !x.force {
			continue
		}

		m.forced[id] = x.force

		switch {
		case x.active:
			row, problem := m.ruled(t, &x, id)
			if problem != "" {
				r.Add(x.at, plan.ErrMissing, "%q: %s", v.ids[id], problem)
			}
			m.defaults[id] = row
		// The order is mergekit's: nobody has it, one has it, the base has it, else the mean of those who do.
		case owners == 0:
			m.defaults[id] = Row{Kind: Zero}
		case owners == 1:
			m.defaults[id] = Row{Source: first, Row: int64(m.own[first][id])}
		case t.Base >= 0 && m.own[t.Base][id] >= 0:
			m.defaults[id] = Row{Source: t.Base, Row: int64(m.own[t.Base][id])}
		default:
			m.defaults[id] = Row{Kind: Mean}
		}
	}

	return m, r.Err()
}

// owners counts the sources that have a token and gives the first.
func (m *mapping) owners(id int) (n, first int) {
	for i := len(m.own) - 1; i >= 0; i-- {
		if m.own[i][id] >= 0 {
			n, first = n+1, i
		}
	}
	return n, first
}

// ruled gives the row that a rule names.
func (m *mapping) ruled(t *plan.Tensor, x *rule, id int) (Row, string) {
	if x.kind == recipe.TokenZero {
		return Row{Kind: Zero}, ""
	}

	for i, s := range t.Sources {
		if s.Model != x.model {
			continue
		}

		row := int64(x.row)
		if x.kind == recipe.TokenModel {
			row = int64(m.own[i][id])
		}

		if row < 0 || row >= s.Info.Shape[0] {
			return Row{}, fmt.Sprintf("%s of its source has %d rows, and %d is not among them", s.Info.Name,
				s.Info.Shape[0], x.row)
		}

		return Row{Source: i, Row: row}, ""
	}

	return Row{}, "its source is not among the models that are merged into " + t.Name
}

// Source returns what row of the output's table comes from, for one source of the tensor.
func (r *Rows) Source(source int, row int64) Row {
	id := int(row)
	if id >= len(r.v.ids) || r.v.ids[id] == "" && r.mapping.own[source][id] < 0 && !r.named(id) {
		return Row{Kind: Padding}
	}
	if own := r.mapping.own[source][id]; own >= 0 && !r.mapping.forced[id] {
		return Row{Source: source, Row: int64(own)}
	}
	return r.mapping.defaults[id]
}

// named reports whether an id has a token, the empty one among them.
func (r *Rows) named(id int) bool {
	got, ok := r.v.out.ids[r.v.ids[id]]
	return ok && got == id
}

// Fill gives the rows [first, first+len(dst)/width) of a source's arranged table. read reads len(dst)/width stored rows
// of a source, from row on; it is called for runs of rows that lie one after the other.
func (r *Rows) Fill(source int, first int64, dst []float32, width int,
	read func(source int, row int64, dst []float32) error,
) error {
	n := len(dst) / width
	for i := 0; i < n; {
		x := r.Source(source, first+int64(i))
		run := 1
		for x.Kind == Stored && i+run < n {
			if y := r.Source(source, first+int64(i+run)); y.Kind != Stored || y.Source != x.Source ||
				y.Row != x.Row+int64(run) {
				break
			}
			run++
		}

		if err := r.fill(x, source, first+int64(i), dst[i*width:(i+run)*width], read); err != nil {
			return err
		}

		i += run
	}

	return nil
}

// fill gives one run of rows.
func (r *Rows) fill(x Row, source int, row int64, dst []float32,
	read func(source int, row int64, dst []float32) error,
) error {
	switch x.Kind {
	case Zero:
		clear(dst)
	case Mean:
		return r.mean(int(row), dst, read)
	case Padding:
		return r.padding(source, dst, read)
	default:
		return read(x.Source, x.Row, dst)
	}

	return nil
}

// mean averages the rows of a token over the sources that have it.
func (r *Rows) mean(id int, dst []float32, read func(source int, row int64, dst []float32) error) error {
	sum, n := make([]float64, len(dst)), 0
	for i, own := range r.mapping.own {
		if own[id] < 0 {
			continue
		}
		if err := read(i, int64(own[id]), dst); err != nil {
			return err
		}
		for j, x := range dst {
			sum[j] += float64(x)
		}

		n++
	}

	for j := range dst {
		dst[j] = float32(sum[j] / float64(n))
	}

	return nil
}

// padding averages all rows of tokens of a source, once.
func (r *Rows) padding(source int, dst []float32, read func(source int, row int64, dst []float32) error) error {
	m := &r.means[source]
	m.Lock()
	defer m.Unlock()

	// Made at the first row that needs it: few tables have rows without tokens.
	if m.row == nil {
		sum, n := make([]float64, len(dst)), 0
		for id := range r.v.ids {
			x := r.Source(source, int64(id))
			if x.Kind == Padding { // else padding would ask for itself
				continue
			}
			if err := r.fill(x, source, int64(id), dst, read); err != nil {
				return err
			}
			for j, value := range dst {
				sum[j] += float64(value)
			}

			n++
		}

		m.row = make([]float32, len(dst))
		for j := range m.row {
			m.row[j] = float32(sum[j] / float64(max(n, 1)))
		}
	}

	copy(dst, m.row)
	return nil
}
