package loracmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// Files is a flag that names files: given several times, it names several. The name of a file may hold commas.
type Files []string

// Set implements pflag.Value.
func (f *Files) Set(name string) error { return f.Append(name) }

// Type implements pflag.Value.
func (f *Files) Type() string { return "stringArray" }

// String implements pflag.Value.
func (f *Files) String() string { return strings.Join(*f, ", ") }

// Append implements pflag.SliceValue.
func (f *Files) Append(name string) error {
	if name == "" {
		return fmt.Errorf("the name of a file is empty")
	}
	*f = append(*f, name)
	return nil
}

// Replace implements pflag.SliceValue.
func (f *Files) Replace(names []string) error {
	*f = nil
	for _, name := range names {
		if err := f.Append(name); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice implements pflag.SliceValue.
func (f *Files) GetSlice() []string { return *f }

// Reported is the value in reports: a text where there is one file, as it was before there could be more.
func (f *Files) Reported() any {
	if len(*f) < 2 {
		return f.String()
	}
	return slices.Clone(f.GetSlice())
}

// Source is one of several files that were trained on.
type Source struct {
	corpus.Windows
	Records lora.DataCounts `json:"records"`
}

// shares reads the weights of files.
func shares(text string, files Files) ([]float64, error) {
	list, err := numbers("data-weights", text)
	if err != nil || list == nil {
		return nil, err
	}

	sum := 0.0
	for _, x := range list {
		if x < 0 {
			return nil, cli.Usagef("--data-weights %q: %g is negative", text, x)
		}
		sum += x
	}

	switch {
	case len(files) > 0 && len(list) != len(files): // in a plan a file of settings may still be to come
		return nil, cli.Usagef("--data-weights %q: %d weights for %d files (HINT: one weight for each --data, in the "+
			"same order)", text, len(list), len(files))
	case sum == 0:
		return nil, cli.Usagef("--data-weights %q: all weights are 0, so that nothing is trained on", text)
	}

	return list, nil
}

// drawn is what the shares of files count.
func (r *run) drawn() string {
	switch {
	case r.o.Prefer == nil:
		return "sequences"
	case r.o.Objective == preferenceOfOne:
		return "answers"
	}
	return "pairs"
}

// reported is the report of the verb, made of that of the training.
func (r *run) reported(t *lora.Report) *Report {
	return &Report{
		Out: r.o.Out, Report: t, BaseHash: r.base, Inputs: r.inputs, Records: r.count, Sources: r.sources,
	}
}

// source is the file that a set of the data is from.
func (r *Report) source(i int) string {
	if i < len(r.Sources) {
		return r.Sources[i].Source
	}
	return r.Data.Source
}

// join puts the sequences of several files after each other.
func (r *run) join(parts []Source) {
	var all []corpus.Windows
	for _, p := range parts {
		all = append(all, p.Windows)
		r.count.Records += p.Records.Records
		r.count.Blank += p.Records.Blank
		r.count.Cut += p.Records.Cut
		r.count.Split += p.Records.Split
		r.count.Empty += p.Records.Empty
		r.count.Same += p.Records.Same
	}

	r.data = lora.Join(all...)
	for i, w := range r.o.shares {
		r.o.Sets = append(r.o.Sets, lora.Set{Sequences: len(all[i].IDs), Weight: w})
	}
	if len(parts) > 1 {
		r.sources = parts
	}
}

// steps takes over the batch of files whose batches are steps as they are. Beside those there can be no others:
// a step would have no size.
func (r *run) steps() error {
	first := 0
	for i, path := range r.o.Data {
		batch := 0
		if strings.HasSuffix(path, ".safetensors") {
			var err error
			if batch, err = lora.StepBatch(path); err != nil {
				return err
			}
		}

		if i == 0 {
			first = batch
		}

		if batch != first {
			return cli.Usagef("--data: %s and %s do not go together: one holds batches that are steps as they are, "+
				"the other none, or of another size",
				r.o.Data[0], path)
		}

		if batch > 0 {
			if r.o.shares != nil {
				return cli.Usagef("--data-weights: the batches of %s are steps as they are, which cannot be mixed",
					path)
			}
			r.o.Batch, r.o.Ordered = batch, true
		}
	}

	return nil
}
