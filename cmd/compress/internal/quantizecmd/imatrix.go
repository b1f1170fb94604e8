package quantizecmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// ImatrixOptions are the settings of compress imatrix, as the command line has them.
type ImatrixOptions struct {
	Data      string // text
	Out       string // file to write: .gguf, or .dat for the form of before
	SeqLen    int    // tokens of a chunk
	Chunks    int    // of the text's beginning; 0: all
	Overwrite bool
}

// ImatrixReport is what a run did.
type ImatrixReport struct {
	Model   string   `json:"model"`
	Out     string   `json:"out"`
	Data    string   `json:"data"`
	Chunks  int      `json:"chunks"`
	SeqLen  int      `json:"seqlen"`
	Tokens  int      `json:"tokens"`
	Entries int      `json:"entries"`
	Begins  bool     `json:"begins_with_bos"` // chunks begin with the token for the beginning of a text
	Empty   int      `json:"experts_without_tokens"`
	Notes   []string `json:"notes"`
}

// CheckImatrix finds what is wrong with flags by themselves.
func CheckImatrix(o ImatrixOptions) error {
	switch {
	case o.SeqLen < 2:
		return cli.Usagef("--seqlen %d: want 2 or more", o.SeqLen)
	case o.Chunks < 0:
		return cli.Usagef("--chunks %d: want 1 or more, or 0 for all of the text", o.Chunks)
	case !strings.HasSuffix(o.Out, ".gguf") && !strings.HasSuffix(o.Out, ".dat"):
		return cli.Usagef("--out %s: want a name that ends in .gguf, or in .dat for the form of before 2025", o.Out)
	}
	return nil
}

// Imatrix makes an importance matrix.
func Imatrix(j *cli.Job, path string, o ImatrixOptions) (*ImatrixReport, error) {
	if err := CheckImatrix(o); err != nil {
		return nil, err
	}
	if err := cli.Apart([2]string{"out", o.Out}, [2]string{"report", j.ReportTo()}); err != nil {
		return nil, err
	}
	place := cli.Place{
		Flag: "out", Path: o.Out, What: "an importance matrix", Own: cli.IsImatrix, Inputs: j.Inputs, Seeks: true,
	}
	out, err := place.Target()
	if err != nil {
		return nil, err
	}
	if err := o.vacant(out); err != nil {
		return nil, err
	}
	if err := openmodel.OnlyWeights(path); err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	windows, err := j.Cut(m, o.Data, corpus.CutOptions{SeqLen: o.SeqLen})
	if err != nil {
		return nil, err
	}
	r := &ImatrixReport{Model: path, Out: o.Out, Data: o.Data, SeqLen: o.SeqLen, Notes: []string{}}
	windows.IDs = whole(windows.IDs, o.SeqLen, o.Chunks)
	if len(windows.IDs) == 0 {
		return nil, cli.Usagef("%s: less than one chunk of %d tokens (HINT: a smaller --seqlen, or more text)", o.Data,
			o.SeqLen)
	}
	if r.Begins, err = quantize.Beginnings(j.Ctx, m, &windows); err != nil {
		return nil, err
	}

	bar := j.Bars()
	defer bar.End()
	blocks := int64(m.Blocks())
	f, err := quantize.Importance(j.Ctx, m, windows, filepath.Base(o.Data), func(s quantize.Step) {
		within := blockSteps * int64(s.Done) / int64(max(s.Of, 1))
		bar.Show("importance", int64(s.Block)*blockSteps+within, blocks*blockSteps)
	})
	bar.End()
	if err != nil {
		return nil, err
	}

	if strings.HasSuffix(out, ".dat") {
		err = f.WriteLegacy(out)
	} else {
		err = f.Write(out, o.Overwrite)
	}
	if err != nil {
		return nil, err
	}

	r.fill(f)
	if text := cli.Beyond(m, o.SeqLen); text != "" {
		r.Notes = append(r.Notes, text)
	}
	r.print(j)
	return r, nil
}

// vacant refuses a file that is there, but for an importance matrix that is to be replaced.
func (o ImatrixOptions) vacant(path string) error {
	if _, err := os.Stat(path); err != nil || o.Overwrite && cli.IsImatrix(path) {
		return nil
	}
	if o.Overwrite {
		return cli.Usagef("%s: it is no importance matrix, and stays (HINT: choose another --out)", path)
	}
	return fmt.Errorf("%s: %w", path, stage.ErrExists)
}

// whole keeps the windows of full length, as llama.cpp takes chunks, and of them the first.
func whole(ids [][]int32, length, most int) (list [][]int32) {
	for _, w := range ids {
		if len(w) == length && (most == 0 || len(list) < most) {
			list = append(list, w)
		}
	}
	return list
}

// fill sums the result up.
func (r *ImatrixReport) fill(f *imatrix.File) {
	r.Chunks = f.Chunks
	r.Tokens = f.Chunks * f.ChunkSize
	r.Entries = len(f.Entries)
	for i := range f.Entries {
		for m := range f.Entries[i].Matrices() {
			if f.Entries[i].Count(m) == 0 {
				r.Empty++
			}
		}
	}
	if r.Empty > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d matrices of experts had no tokens: all their inputs count alike",
			r.Empty))
	}
}

func (r *ImatrixReport) print(j *cli.Job) {
	t := &report.Table{Columns: report.Columns("entries", "chunks", "tokens each", "tokens")}
	t.Add(r.Entries, r.Chunks, r.SeqLen, r.Tokens)
	j.Table(t)
	j.Printf("written to %s in %.1f s\n", r.Out, j.Elapsed().Seconds())
	for _, n := range r.Notes {
		j.Note("%s", n)
	}
}
