package peft

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// Names of the files of an adapter.
const (
	ConfigName  = "adapter_config.json"
	WeightsName = "adapter_model.safetensors"
)

// Read reads the adapter in a folder for a base with the given modules. The errors wrap [adapter.ErrConfig],
// [adapter.ErrUnsupported], [adapter.ErrFile], [adapter.ErrTarget] or [adapter.ErrBase], which names the first
// tensor that does not fit the base.
func Read(dir string, modules []adapter.Module) (*adapter.Adapter, error) {
	a, _, err := ReadNoted(dir, modules)
	return a, err
}

// ReadNoted is [Read], and lists what was accepted without effect, a line each. Adapters that need the base's
// weights too are refused; see [ReadOn].
func ReadNoted(dir string, modules []adapter.Module) (*adapter.Adapter, []string, error) {
	return ReadOn(dir, modules, nil)
}

// read reads what the files say.
func read(dir string, modules []adapter.Module) (*adapter.Adapter, []string, error) {
	s, err := readSettings(dir)
	if err != nil {
		return nil, nil, err
	}

	f, err := openWeights(dir)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()

	if err := s.noted(f.Metadata()); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Path(), err)
	}

	r := &reader{
		settings: s, file: f, modules: renamed(modules, f.Names()), byPath: map[string]int{},
		low: map[string]*found{},
	}
	if err := r.read(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Path(), err)
	}

	return r.out, s.notes, nil
}

// renamed gives the head the name that the file has for it. That of GPT-NeoX is embed_out in its checkpoints
// and in the transformers library up to version 4, and lm_head from version 5 on.
func renamed(modules []adapter.Module, keys []string) []adapter.Module {
	named := func(path string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, prefix+path+".") })
	}
	other := map[string]string{"embed_out": "lm_head", "lm_head": "embed_out"}
	for i, m := range modules {
		if name := other[m.Path]; m.Role == arch.Head && !m.Tied && name != "" && !named(m.Path) && named(name) {
			modules = slices.Clone(modules)
			modules[i].Path = name
		}
	}

	return modules
}

// readConfig reads the text of adapter_config.json, following no link out of the folder.
func readConfig(dir string) ([]byte, error) {
	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	f, err := safefile.In(root, ConfigName)
	if err != nil {
		return nil, missing(dir, ConfigName, err)
	}
	defer f.Close()

	// Reading a named pipe would not end.
	if stat, err := f.Stat(); err != nil || !stat.Mode().IsRegular() {
		return nil,
			errors.Join(err, fmt.Errorf("%s: %w: not a regular file", filepath.Join(dir, ConfigName), adapter.ErrFile))
	}

	text, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1))
	if err != nil {
		return nil, err
	}

	if len(text) > maxConfigSize {
		return nil, fmt.Errorf("%s: %w: larger than %d bytes", filepath.Join(dir, ConfigName), adapter.ErrConfig,
			maxConfigSize)
	}

	return text, nil
}

// openWeights opens adapter_model.safetensors, following no link out of the folder.
func openWeights(dir string) (*safetensors.File, error) {
	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	if _, err := root.Stat(WeightsName); err != nil {
		if _, other := root.Stat("adapter_model.bin"); other == nil && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w: adapter_model.bin is a Python pickle, which is not read (HINT: save the "+
				"adapter as safetensors)", dir, adapter.ErrUnsupported)
		}
		return nil, missing(dir, WeightsName, err)
	}

	return safetensors.Open(filepath.Join(dir, WeightsName))
}

// missing names the file that a folder lacks.
func missing(dir, name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: no adapter here, %s is missing: %w", dir, adapter.ErrFile, name, fs.ErrNotExist)
	}
	return fmt.Errorf("%s: %w: %w", filepath.Join(dir, name), adapter.ErrFile, err)
}
