package peft

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// ReadAlone reads the adapter in a folder without its base: the modules are those that the file has factors
// for, and whether the configuration targets more is not known.
func ReadAlone(dir string) (*adapter.Adapter, []string, error) {
	s, err := readSettings(dir)
	if err != nil {
		return nil, nil, err
	}

	if moves(s.Init) {
		return nil, nil, needsBase(dir, s.Init)
	}
	if !s.form.alone {
		return nil, nil, failure.Hinted(fmt.Errorf("%s: %w: the sizes of a %s adapter are those of its base", dir,
			adapter.ErrUnsupported, s.form.peftType), "--model names it")
	}

	f, err := openWeights(dir)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()

	if err := s.noted(f.Metadata()); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Path(), err)
	}

	modules, err := implied(f, s.form, s.stored)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Path(), err)
	}

	all := s.Targets.All
	if all {
		s.Targets = adapter.Match{} // which modules are linear is not known
	}

	r := &reader{settings: s, file: f, modules: modules, byPath: map[string]int{}, low: map[string]*found{}}
	if err := r.read(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	if all {
		r.out.Config.Targets = adapter.Match{All: true}
	}

	return r.out, s.notes, nil
}

// readSettings reads and checks the configuration in a folder.
func readSettings(dir string) (*settings, error) {
	text, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	s, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ConfigName), err)
	}
	return s, nil
}

// implied makes modules of the tensors of a file.
func implied(f *safetensors.File, kind *form, transposed bool) ([]adapter.Module, error) {
	at := map[string]*adapter.Module{}
	var paths []string
	for _, key := range f.Names() {
		name, ok := strings.CutPrefix(key, prefix)
		for _, p := range kind.parts {
			path, is := strings.CutSuffix(name, p.ending)
			if !ok || !is {
				continue
			}

			m := at[path]
			if m == nil {
				m = newModule(path, transposed)
				at[path] = m
				paths = append(paths, path)
			}

			info, _ := f.Info(key)
			if err := learn(m, key, p.part, info); err != nil {
				return nil, err
			}
		}
	}

	// By numbers, so that layer 10 comes after layer 9, as it would with a base.
	slices.SortFunc(paths, byNumbers)
	var list []adapter.Module
	for _, p := range paths {
		list = append(list, *at[p])
	}

	return list, nil
}

// newModule is what a path says of a module.
func newModule(path string, transposed bool) *adapter.Module {
	m := &adapter.Module{
		Path: path, Tensor: path + ".weight", Bias: path + ".bias", Block: -1, Expert: -1,
		Transposed: transposed, In: math.MaxInt32,
	}
	for part := range strings.SplitSeq(path, ".") {
		if n, err := strconv.Atoi(part); err == nil && m.Block < 0 {
			m.Block = n
		}
	}

	if last := path[strings.LastIndexByte(path, '.')+1:]; last == "lm_head" || last == "embed_out" {
		m.Role = arch.Head
	}

	return m
}

// learn takes sizes from a tensor.
func learn(m *adapter.Module, key, part string, info safetensors.Info) error {
	// Vectors say nothing about the input, and the factors beside them say all.
	if part == "bias" || part == "magnitude" {
		return nil
	}
	if strings.HasPrefix(part, "parts") { // GraLoRA's [k, in/k, r] and [k, r, out/k]
		return learnParts(m, key, part, info)
	}
	if len(info.Shape) != 2 || info.Shape[0] > math.MaxInt32 || info.Shape[1] > math.MaxInt32 || info.Shape[0] == 0 ||
		info.Shape[1] == 0 {
		return fmt.Errorf("tensor %.200q: %w: shape %v is no factor's", key, adapter.ErrFile, info.Shape)
	}

	// Only a token table has factors of these names; trained rows may be the head's too.
	if strings.HasPrefix(part, "table") || part == "rows" && m.Role != arch.Head {
		m.Table = true
		m.Role = arch.Embed
		m.Transposed = false
		m.Bias = ""
	}

	switch part {
	case "A", "tableA":
		m.In = int(info.Shape[1])
	case "B", "tableB":
		m.Out = int(info.Shape[0])
	case "rows":
		learnRows(m, int(info.Shape[1]))
	}

	return nil
}

// learnParts takes sizes from a stack of factors.
func learnParts(m *adapter.Module, key, part string, info safetensors.Info) error {
	bad := len(info.Shape) != 3
	for _, n := range info.Shape {
		bad = bad || n < 1 || n > 1<<15
	}
	if bad {
		return fmt.Errorf("tensor %.200q: %w: shape %v is no stack of factors", key, adapter.ErrFile, info.Shape)
	}

	if part == "parts A" {
		m.In = int(info.Shape[0] * info.Shape[1])
	} else {
		m.Out = int(info.Shape[0] * info.Shape[2])
	}
	return nil
}

// learnRows takes the width of a table from its rows; how many there are is not known.
func learnRows(m *adapter.Module, width int) {
	if m.Table {
		m.Out = width
		return
	}
	m.In, m.Out = width, math.MaxInt32
}

// byNumbers orders paths part by part, numbers by their values.
func byNumbers(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	return slices.CompareFunc(x, y, func(p, q string) int {
		n, errN := strconv.Atoi(p)
		m, errM := strconv.Atoi(q)
		if errN == nil && errM == nil && n != m {
			return n - m
		}
		return strings.Compare(p, q)
	})
}
