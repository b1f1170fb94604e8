package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// A file of statistics may hold those of several methods.
const (
	BothStatistics = "fisher+gram" // what the file says it holds
	GramPrefix     = "gram:"       // of the names of Gram matrices in it
	OwnerKey       = "model"       // of its metadata: the fingerprint of the model that they are of
)

// ownStatistics refuses files of statistics that say that they are of another model than the one that they weigh: two
// that are swapped would make a merge that looks like any other. Those that do not say it, of earlier builds or of
// other tools, are taken as they are.
func (w *Work) ownStatistics(ctx context.Context) error {
	key := w.Method.Stat
	if key == "" || w.Options.KnownOwners {
		return nil
	}

	type pair struct {
		file  string
		model int
	}
	seen := map[pair]bool{}
	prints := map[string]string{} // by folder
	for i := range w.Plan.Tensors {
		for _, s := range w.Plan.Tensors[i].Sources {
			if !s.Params.Has(key) {
				continue // the base, or a tensor that is copied
			}
			p := pair{s.Params.Text(key), s.Model}
			if seen[p] {
				continue
			}
			seen[p] = true

			if err := w.ownedBy(ctx, p.file, w.Plan.Models[s.Model], prints); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownedBy compares what a file of statistics says of its model with the fingerprint of a model.
func (w *Work) ownedBy(ctx context.Context, path string, ref recipe.Ref, prints map[string]string) error {
	f, err := w.statFile(path)
	if err != nil {
		return err
	}
	owner := f.Metadata()[OwnerKey]
	if owner == "" || w.empty[w.Folders[ref]] {
		return nil
	}
	if ref.Adapter.Path != "" { // its weights are in no file
		w.Warnings = append(w.Warnings, fmt.Sprintf("whether the statistics %s are of %s is not checked, since its "+
			"adapter is folded only here", path, ref))
		return nil
	}

	hash := func(dir string) (string, error) {
		if prints[dir] == "" {
			print, err := lm.Fingerprint(ctx, dir)
			if err != nil {
				return "", fmt.Errorf("whether the statistics %s are of %s: %w", path, ref, err)
			}
			prints[dir] = print
		}
		return prints[dir], nil
	}
	own, err := hash(w.Folders[ref])
	if err != nil || own == owner {
		return err
	}

	// Of which other model of the recipe they are is worth the reading: that the two are swapped is the likely mistake.
	of := fmt.Sprintf("of another model (fingerprint %.12s) than %s (%.12s)", owner, ref, own)
	for _, other := range w.Plan.Models {
		if other == ref || other.Adapter.Path != "" || w.empty[w.Folders[other]] {
			continue
		}
		if print, err := hash(w.Folders[other]); err == nil && print == owner {
			of = fmt.Sprintf("of %s, not of %s", other, ref)
			break
		}
	}
	return failure.Hinted(Faultf(w.Recipe.Path, "the statistics %s are %s", path, of),
		fmt.Sprintf("compress merge statistics %s collects its own", ref))
}

// StatisticsFiles lists the paths of the files of statistics that the methods have read so far.
func (w *Work) StatisticsFiles() (paths []string) {
	for _, f := range w.stats {
		paths = append(paths, f.Path())
	}
	slices.Sort(paths)
	return paths
}

// statistics finds what an input's file of statistics says about a tensor.
func (w *Work) statistics(m *method.Method, it *stream.Item, in *method.Input, s *plan.TensorSource) error {
	if m.Stat == "" {
		return nil
	}

	f, err := w.statFile(s.Params.Text(m.Stat))
	if err != nil {
		return err
	}

	name := s.Info.Name
	if m.Stat == "gram" && f.Metadata()["statistic"] == BothStatistics {
		name = GramPrefix + name
	}
	info, ok := f.Info(name)
	if !ok {
		it.Stat = append(it.Stat, nil)
		return nil
	}

	data, err := f.Bytes(info.Name)
	if err != nil {
		return err
	}

	// a failing release costs memory alone
	src, err := stream.NewMapped(data, info.DType, 0, func() { _ = f.Release(info.Name) })
	if err != nil {
		return fmt.Errorf("%s: tensor %q: %w", f.Path(), info.Name, err)
	}

	in.Stat = info.Shape
	it.Stat = append(it.Stat, checked{src, f.Path(), info.Name, m.Stat == "fisher"})
	return nil
}

// errStatistics: what a file of statistics holds cannot have been measured.
var errStatistics = errors.New("bad statistics")

// checked is a tensor of statistics of which no value is NaN or infinite, nor below zero where it has squares.
type checked struct {
	stream.Source
	path, name string
	squares    bool
}

// Read implements [stream.Source].
func (c checked) Read(dst []float32, off int64) error {
	if err := c.Source.Read(dst, off); err != nil {
		return err
	}
	for i, v := range dst {
		switch {
		case math.IsNaN(float64(v)) || math.IsInf(float64(v), 0):
			return fmt.Errorf("%w: %s: tensor %q: element %d is %g", errStatistics, c.path, c.name, off+int64(i), v)
		case c.squares && v < 0:
			return fmt.Errorf("%w: %s: tensor %q: element %d is %g, and Fisher information is never below zero",
				errStatistics, c.path, c.name, off+int64(i), v)
		}
	}
	return nil
}

// statFile opens a file of statistics once; paths are tried as they are, then from the recipe.
func (w *Work) statFile(path string) (*safetensors.File, error) {
	if f := w.stats[path]; f != nil {
		return f, nil
	}

	f, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) && !filepath.IsAbs(path) {
		f, err = safetensors.Open(filepath.Join(filepath.Dir(w.Recipe.Path), path))
	}
	if err != nil {
		return nil, fmt.Errorf("statistics: %w", err)
	}

	w.stats[path] = f
	return f, nil
}
