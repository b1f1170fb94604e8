package merging

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/regular"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge"
)

// SearchOptions are the flags of the verb merge search.
type SearchOptions struct {
	Data                    []string
	Out, Memory             string
	Generations, Population int
	Sigma                   float64
	SeqLen, Limit           int
	Resume                  bool
}

// recipeLimit bounds what is read of a recipe file.
const recipeLimit = 1 << 20

// Search finds the open numbers of a recipe.
func Search(j *shell.Job, path string, o SearchOptions) (any, error) {
	if st, err := os.Stat(path); err == nil && st.Size() > recipeLimit {
		return nil, shell.Usagef("%s: longer than %d bytes, which no recipe is", path, recipeLimit)
	}
	text, err := regular.ReadFile(path, recipeLimit)
	if err != nil {
		return nil, err
	}
	opts, err := o.library(j)
	if err != nil {
		return nil, err
	}
	line := j.Bars()
	opts.Each = func(s merge.SearchStep) {
		line.Show(fmt.Sprintf("generation %d", s.Generation), int64(s.Candidate+1), int64(max(s.Candidate+1, o.Population)))
	}
	result, err := merge.Search(j.Ctx, path, text, o.Out, opts)
	line.End()
	if err != nil {
		return nil, excerpted(j, err)
	}
	if !j.Quiet {
		j.Table(found(result, o.Out))
	}
	return result, nil
}

// library makes the options of the library from the flags.
func (o SearchOptions) library(j *shell.Job) (merge.SearchOptions, error) {
	threads, err := j.Threads()
	if err != nil {
		return merge.SearchOptions{}, err
	}
	memory, err := shell.Bytes("memory", o.Memory)
	if err != nil {
		return merge.SearchOptions{}, err
	}
	if o.Generations < 1 {
		return merge.SearchOptions{}, shell.Usagef("--generations %d: want 1 or more", o.Generations)
	}
	texts, err := o.texts(j)
	if err != nil {
		return merge.SearchOptions{}, err
	}
	dev, err := j.Device()
	if err != nil {
		return merge.SearchOptions{}, err
	}
	return merge.SearchOptions{
		Device: dev, Texts: texts, Generations: o.Generations, Population: o.Population, Sigma: o.Sigma, Seed: j.Seed, Resume: o.Resume,
		Merge: merge.Options{Workers: threads, Memory: memory, Seed: j.Seed},
	}, nil
}

// texts reads FILE or FILE=WEIGHT.
func (o SearchOptions) texts(j *shell.Job) ([]merge.SearchText, error) {
	var out []merge.SearchText
	for _, arg := range o.Data {
		t := merge.SearchText{Name: filepath.Base(arg), Weight: 1}
		file := arg
		if i := strings.LastIndexByte(arg, '='); i >= 0 {
			w, err := strconv.ParseFloat(arg[i+1:], 64)
			if err != nil || !(w > 0) || math.IsInf(w, 0) {
				return nil, shell.Usagef("--data %s: the weight after = must be a number above 0", arg)
			}
			file, t.Weight, t.Name = arg[:i], w, filepath.Base(arg[:i])
		}
		hash, err := shell.FileHash(j.Ctx, file)
		if err != nil {
			return nil, err
		}
		cut := corpus.CutOptions{SeqLen: o.SeqLen, Limit: o.Limit}
		t.Hash = shell.Fingerprint(hash, o.SeqLen, o.Limit)
		t.Cut = func(m *lm.Model) (corpus.Windows, error) { return j.Cut(m, file, cut) }
		out = append(out, t)
	}
	return out, nil
}

// found is the table of what a search found.
func found(r *merge.SearchReport, out string) *report.Table {
	t := &report.Table{Columns: report.Columns("number", "from", "to", "start", "best")}
	for i, v := range r.Variables {
		t.Add(v.Name, v.Low, v.High, v.Start, r.Values[i])
	}
	failed := 0
	for _, s := range r.Steps {
		if s.Failed != "" {
			failed++
		}
	}
	t.Note = fmt.Sprintf("loss %.6g nats per token (perplexity %.4f)", r.Score, math.Exp(r.Score))
	if r.Start >= 0 {
		t.Note += fmt.Sprintf(", at the start %.6g (%.4f)", r.Start, math.Exp(r.Start))
	}
	t.Note += fmt.Sprintf("; %d candidates, %d of them without a score; recipe in %s", len(r.Steps), failed, filepath.Join(out, merge.BestName))
	return t
}
