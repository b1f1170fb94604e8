package modelcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

func printInspection(j *cli.Job, r *checkpoint.Inspection, list, values bool) {
	if r.Architecture != "" {
		j.Printf("%s: %s, %d blocks, hidden %d, %d heads (%d key/value), vocabulary %d\n", r.Path, r.Architecture,
			r.Blocks, r.Hidden, r.Heads, r.KVHeads, r.Vocabulary)
	}

	j.Printf("%s parameters, %d tensors, %s in %d file(s)\n", cli.Thousands(r.Parameters), r.Tensors, cli.Size(r.Bytes),
		len(r.Files))
	if r.Quantisation != "" {
		j.Printf("quantised: %s; the types are those of the values\n", r.Quantisation)
	}
	switch {
	case r.Note != "" && r.Architecture == "":
		j.Printf("%s; its tensors are shown without roles\n", r.Note)
	case r.Note != "":
		j.Printf("%s\n", r.Note)
	}

	if len(r.Metadata) > 0 {
		m := &report.Table{Columns: report.Columns("key", "value")}
		for _, pair := range r.Metadata {
			m.Add(pair.Key, pair.Value)
		}
		j.Table(m)
	}

	t := &report.Table{Columns: report.Columns("role", "tensors", "parameters", "dtype")}
	if values {
		t.Columns = append(t.Columns, report.Columns("zeros %|%.2f")...)
	}

	for _, role := range r.Roles {
		t.Add(role.Role, role.Tensors, role.Elements, role.DType)
		if values {
			t.Rows[len(t.Rows)-1] = append(t.Rows[len(t.Rows)-1], percent(role.Sparsity))
		}
	}

	if values {
		t.Note = zerosNote(r)
	}

	j.Table(t)
	if list {
		j.Table(listing(r, values))
	}
	if i := slices.IndexFunc(r.List, func(t checkpoint.TensorReport) bool { return t.Stored != "" }); i >= 0 {
		j.Note("the experts of a block lie in one tensor: %s in %s", r.List[i].Name, r.List[i].Stored)
	}
	for _, u := range r.Unknown {
		j.Note("%s", cli.UnknownKey(u, r.Misspelt[u]))
	}
	for _, d := range r.Uncounted {
		j.Note("zeros of %s tensors are not counted: the format does not say how their bits are packed", d)
	}
	for _, text := range r.Remarks {
		j.Note("%s", text)
	}
	if len(r.Verified) > 0 {
		j.Printf("verified: %s\n", strings.Join(r.Verified, ", "))
	}
}

func listing(r *checkpoint.Inspection, values bool) *report.Table {
	t := &report.Table{Columns: report.Columns("tensor", "dtype", "shape", "role")}
	if r.Quantisation != "" {
		t.Columns = append(t.Columns, report.Columns("format")...)
	}
	sizes := slices.ContainsFunc(r.List, func(e checkpoint.TensorReport) bool { return e.Size > 0 })
	if sizes {
		t.Columns = append(t.Columns, report.Columns("bytes")...)
	}
	if values {
		t.Columns = append(t.Columns, report.Columns("zeros", "not finite")...)
	}

	for _, e := range r.List {
		t.Add(e.Name, e.DType, fmt.Sprint(e.Shape), e.Role)
		if r.Quantisation != "" {
			t.Rows[len(t.Rows)-1] = append(t.Rows[len(t.Rows)-1], e.Format)
		}
		if sizes {
			t.Rows[len(t.Rows)-1] = append(t.Rows[len(t.Rows)-1], e.Size)
		}
		if values {
			t.Rows[len(t.Rows)-1] = append(t.Rows[len(t.Rows)-1], zerosOf(&e), e.NonFinite)
		}
	}

	return t
}

// notCounted stands where zeros could not be counted.
const notCounted = "not counted"

func percent(share *float64) any {
	if share == nil {
		return notCounted
	}
	return 100 * *share
}

func zerosOf(t *checkpoint.TensorReport) any {
	if t.Zeros == nil {
		return notCounted
	}
	return *t.Zeros
}

// zerosNote is the line below the roles.
func zerosNote(r *checkpoint.Inspection) string {
	where := "the matrices of the blocks"
	if r.Architecture == "" {
		where = "all tensors"
	}
	if r.Sparsity == nil {
		return "zeros in " + where + ": " + notCounted
	}
	return fmt.Sprintf("zeros in %s: %.2f %%", where, 100**r.Sparsity)
}
