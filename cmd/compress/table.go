package main

import (
	"io"

	"github.com/modelcompress/compress/cmd/compress/internal/terminal"
	"github.com/modelcompress/compress/internal/report"
)

// printTable writes a table for people; nothing where output is discarded.
func printTable(out io.Writer, t *report.Table) { terminal.Table(out, t) }
