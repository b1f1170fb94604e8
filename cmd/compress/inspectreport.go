package main

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/internal/report"
)

func printInspection(j *job, r *checkpoint.Inspection, list, values bool) {
	out := j.out()
	if r.Architecture != "" {
		fmt.Fprintf(out, "%s: %s, %d blocks, hidden %d, %d heads (%d key/value), vocabulary %d\n", r.Path, r.Architecture, r.Blocks, r.Hidden, r.Heads, r.KVHeads, r.Vocabulary)
	}
	fmt.Fprintf(out, "%s parameters, %d tensors, %s in %d file(s)\n", thousands(r.Parameters), r.Tensors, size(r.Bytes), len(r.Files))
	t := &report.Table{Columns: report.Columns("role", "tensors", "parameters", "dtype")}
	if values {
		t.Columns = append(t.Columns, report.Columns("zeros %|%.2f")...)
	}
	for _, role := range r.Roles {
		t.Add(role.Role, role.Tensors, role.Elements, role.DType)
		if values {
			t.Rows[len(t.Rows)-1] = append(t.Rows[len(t.Rows)-1], 100**role.Sparsity)
		}
	}
	if values {
		t.Note = fmt.Sprintf("zeros in the matrices of the blocks: %.2f %%", 100**r.Sparsity)
	}
	printTable(out, t)
	if list {
		printTable(out, listing(r, values))
	}
	for _, u := range r.Unknown {
		j.note("config.json: the key %q is unknown and has no effect", u)
	}
	for _, d := range r.Unchecked {
		j.note("values of %s tensors are not looked at", d)
	}
	if len(r.Verified) > 0 {
		fmt.Fprintf(out, "verified: %s\n", strings.Join(r.Verified, ", "))
	}
}

func listing(r *checkpoint.Inspection, values bool) *report.Table {
	t := &report.Table{Columns: report.Columns("tensor", "dtype", "shape", "role")}
	if values {
		t.Columns = append(t.Columns, report.Columns("zeros", "not finite")...)
	}
	for _, e := range r.List {
		t.Add(e.Name, e.DType, fmt.Sprint(e.Shape), e.Role)
		if values {
			t.Rows[len(t.Rows)-1] = append(t.Rows[len(t.Rows)-1], e.Zeros, e.NonFinite)
		}
	}
	return t
}
