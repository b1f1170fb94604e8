package modelcmd

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// Importance is what inspect says about an importance matrix.
type Importance struct {
	Path      string            `json:"path"`
	Datasets  []string          `json:"datasets"` // names of the texts
	Chunks    int               `json:"chunks"`
	ChunkSize int               `json:"chunk_size"` // tokens of each; 0 where the file does not say it
	Trailing  int               `json:"trailing_bytes,omitempty"`
	Entries   []ImportanceEntry `json:"entries"`
}

// ImportanceEntry is what flowed into the matrices of a tensor.
type ImportanceEntry struct {
	Name     string  `json:"name"`
	Inputs   int     `json:"inputs"`
	Matrices int     `json:"matrices"`
	Tokens   int64   `json:"tokens"`          // of the matrix that the fewest reached
	Idle     int     `json:"idle_inputs"`     // of all matrices, that were 0 throughout
	Strength float64 `json:"largest_by_mean"` // of the inputs' mean squares
	Empty    int     `json:"without_tokens"`  // matrices
	Mean     float64 `json:"mean_of_squares"` // of all inputs
}

// importance shows an importance matrix; false where a file is none.
func importance(j *cli.Job, path string) (*Importance, bool) {
	if filepath.Ext(path) != ".gguf" && filepath.Ext(path) != ".dat" {
		return nil, false
	}
	f, err := imatrix.Read(path)
	if err != nil {
		return nil, false // a model, or something else that is said
	}

	r := &Importance{
		Path: path, Datasets: f.Datasets, Chunks: f.Chunks, ChunkSize: f.ChunkSize, Trailing: f.Trailing,
	}
	if r.Datasets == nil {
		r.Datasets = []string{}
	}
	for i := range f.Entries {
		r.Entries = append(r.Entries, entryOf(&f.Entries[i]))
	}

	t := &report.Table{Columns: report.Columns("entry", "matrices", "inputs", "tokens", "always 0",
		"mean square|%.4g", "largest by mean|%.1f")}
	empty := 0
	for _, e := range r.Entries {
		empty += e.Empty
		t.Add(e.Name, e.Matrices, e.Inputs, e.Tokens, e.Idle, e.Mean, e.Strength)
	}
	j.Table(t)

	size := ""
	if f.ChunkSize > 0 {
		size = fmt.Sprintf(" of %d tokens", f.ChunkSize)
	}
	j.Printf("importance matrix of %d tensors, %d chunks%s of %s\n", len(r.Entries), f.Chunks, size,
		strings.Join(f.Datasets, ", "))
	if empty > 0 {
		j.Note("%d matrices of experts had no tokens: all their inputs count alike", empty)
	}
	if f.Trailing > 0 {
		j.Note("%d bytes at the end are not read", f.Trailing)
	}
	return r, true
}

// entryOf sums an entry up.
func entryOf(e *imatrix.Entry) ImportanceEntry {
	r := ImportanceEntry{Name: e.Name, Inputs: e.Inputs, Matrices: e.Matrices(), Tokens: e.Count(0)}
	sum, largest := 0.0, 0.0
	for m := range r.Matrices {
		r.Tokens = min(r.Tokens, e.Count(m))
		if e.Count(m) == 0 {
			r.Empty++
			continue
		}
		for _, v := range e.Importance(m) {
			sum += float64(v)
			largest = max(largest, float64(v))
			if v == 0 {
				r.Idle++
			}
		}
	}

	if n := (r.Matrices - r.Empty) * r.Inputs; n > 0 && sum > 0 {
		r.Mean = sum / float64(n)
		r.Strength = largest / r.Mean
	}
	return r
}
