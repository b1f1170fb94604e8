package quantizecmd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// FileReport is the library's report on a GGUF file with what the command line adds.
type FileReport struct {
	*quantize.FileReport
	Out        string                  `json:"out"`
	Size       int64                   `json:"file_bytes"`
	Perplexity *perplexity.BeforeAfter `json:"perplexity,omitempty"`
	// Assignment is how types were chosen, where --to names several.
	Assignment *quantize.Assignment `json:"assignment,omitempty"`
}

// fileOptions turns flags into the library's options of files.
func (o *Options) fileOptions(s quantize.Scheme) (quantize.FileOptions, error) {
	q := o.Quantize
	f := quantize.FileOptions{
		Scheme: s, Imatrix: o.Imatrix, Name: o.Name, Origin: q.Origin, Out: q.Out, Overwrite: q.Overwrite,
		Resume: q.Resume,
	}
	var err error
	if o.assigned != nil {
		f = o.assigned.FileOptions(f)
	} else if f.Types, err = o.rules("blk.*.ffn_down.weight=q6_k"); err != nil {
		return f, err
	}

	switch {
	case !strings.HasSuffix(q.Out, ".gguf"):
		return f, cli.Usagef("--out %s: scheme %s writes one file; give it a name that ends in .gguf", q.Out, s.Name)
	case q.Method != quantize.RTN:
		return f, cli.Usagef("--method %s goes with the schemes of folders; a GGUF file takes --imatrix", q.Method)
	case q.Range != "" || q.Smooth != 0:
		return f, cli.Usagef("--smooth and --range go with the schemes of folders; the types of a GGUF file have "+
			"searches of their own, and take --imatrix (scheme %s)", s.Name)
	case q.Damping != 0 || q.Order != "" || q.FitLate || q.TrueSequential:
		return f, cli.Usagef("--damp, --act-order, --late-scales and --true-sequential belong to --method gptq of "+
			"folders; a GGUF file takes --imatrix (scheme %s)", s.Name)
	case o.Calib != "" && o.assigned == nil:
		return f, cli.Usagef("--calib measures nothing for one scheme of a GGUF file, which takes --imatrix (scheme "+
			"%s)", s.Name)
	case q.Sparsity != 0 || q.Pattern != "":
		return f, cli.Usagef("--sparsity and --pattern go with the schemes of folders; compress prune makes weights 0 "+
			"before they become a GGUF file (scheme %s)", s.Name)
	case q.KeepZeros:
		return f, cli.Usagef("--keep-zeros goes with the schemes of folders; of the types of GGUF files those with a "+
			"minimum (q4_1, q4_k …) cannot promise it, and the others keep zeros anyway (scheme %s)", s.Name)
	case q.Group != 0 || len(q.Ignore) > 0 || o.Shard != "keep":
		return f, cli.Usagef("--group-size, --ignore and --max-shard-size go with the schemes of folders; --type "+
			"PATTERN=TYPE gives tensors of a GGUF file another type, such as f16 (scheme %s)", s.Name)
	}
	return f, f.Validate()
}

// intoFile writes a model as a GGUF file and prints what became of it.
func intoFile(j *cli.Job, path string, o Options, s quantize.Scheme) (*FileReport, error) {
	f, err := o.fileOptions(s)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cli.Apart([2]string{"out", f.Out}, [2]string{"report", j.ReportTo()}),
		stage.Apart(path, f.Out)); err != nil {
		return nil, err
	}
	if err := replaceable(f.Out, f.Overwrite); err != nil {
		return nil, err
	}
	if err := openmodel.OnlyWeights(path); err != nil {
		return nil, err
	}
	if f.Threads, err = j.Threads(); err != nil {
		return nil, err
	}
	if o.Imatrix != "" {
		if f.Importance, err = imatrix.Read(o.Imatrix); err != nil {
			return nil, err
		}
	}

	cut := corpus.CutOptions{SeqLen: o.SeqLen}
	r := &FileReport{Out: f.Out, Assignment: o.assigned}
	if o.PPL != "" {
		before, err := perplexityOf(j, stageBefore, path, o.PPL, cut)
		if err != nil {
			return nil, err
		}
		r.Perplexity = &perplexity.BeforeAfter{Before: before}
	}

	bar := j.Bars()
	defer bar.End()
	f.Progress = func(done, of int64) { bar.Show(stageQuantising, done, of) }
	if r.FileReport, err = quantize.File(j.Ctx, path, f); err != nil {
		return nil, err
	}
	bar.End()

	if info, err := os.Stat(f.Out); err == nil {
		r.Size = info.Size()
	}
	if o.PPL != "" {
		if r.Perplexity.After, err = perplexityOf(j, stageAfter, f.Out, o.PPL, cut); err != nil {
			return nil, err
		}
	}

	r.print(j)
	return r, nil
}

// replaceable refuses to put a file in the place of something that is no GGUF file.
func replaceable(path string, overwrite bool) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil
	case info.IsDir():
		return cli.Usagef("--out %s: there is a folder (HINT: choose another --out)", path)
	case !overwrite || info.Size() == 0:
		return nil // the library says it, or continues what is there
	}

	f, err := gguf.Open(path)
	if err != nil {
		return cli.Usagef("--out %s: what is there is no GGUF file, and stays (HINT: choose another --out)", path)
	}
	return f.Close()
}

// perplexityOf measures a model that is not open.
func perplexityOf(j *cli.Job, stage, path, data string, cut corpus.CutOptions) (*perplexity.Report, error) {
	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	w, err := j.Cut(m, data, cut)
	if err != nil {
		return nil, err
	}
	r, _, err := perplexity.Windows(j, stage, m, w)
	return r, err
}

// print shows the tensors by their types.
func (r *FileReport) print(j *cli.Job) {
	type sum struct {
		tensors        int
		weights, bytes int64
	}
	types := map[string]*sum{}
	weighted := 0
	for _, t := range r.Tensors {
		s := types[t.Type]
		if s == nil {
			s = &sum{}
			types[t.Type] = s
		}
		n := int64(1)
		for _, d := range t.Shape {
			n *= d
		}
		s.tensors++
		s.weights += n
		s.bytes += t.Bytes
		if t.Weighted {
			weighted++
		}
	}

	var names []string
	for name := range types {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return int(types[b].weights/1024 - types[a].weights/1024)
	})

	t := &report.Table{Columns: report.Columns("type", "tensors", "weights", "bytes", "bits a weight|%.2f")}
	for _, name := range names {
		s := types[name]
		t.Add(name, s.tensors, s.weights, s.bytes, 8*float64(s.bytes)/float64(s.weights))
	}
	t.Add("all", r.Total.Tensors, r.Total.Weights, r.Total.Bytes, r.Total.BitsPerWeight)
	t.Note = fmt.Sprintf("%s: %.2f bits a weight; %s became %s", r.Options.Scheme.Name, r.Total.BitsPerWeight,
		cli.Size(r.Total.BytesIn), cli.Size(r.Total.Bytes))
	if weighted > 0 {
		t.Note += fmt.Sprintf("; %d tensors weighted by %s", weighted, r.Options.Imatrix)
	}
	j.Table(t)
	r.Perplexity.Print(j)

	if r.Finished {
		j.Printf("%s, %s, was finished already\n", r.Out, cli.Size(r.Size))
	} else {
		j.Printf("written to %s, %s, in %.1f s\n", r.Out, cli.Size(r.Size), j.Elapsed().Seconds())
	}
	for _, n := range r.Notes {
		j.Note("%s", n)
	}
}
