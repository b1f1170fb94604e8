package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// form is how a model lies on the disk.
type form struct {
	path   string
	folder bool   // the path is one
	gguf   string // GGUF file; empty: safetensors
}

// formOf looks at what a path leads to. The error is one of the operating system.
func formOf(path string) (*form, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, err
	}

	f := &form{path: path, folder: stat.IsDir()}
	switch {
	case f.folder:
		f.gguf, err = findGGUF(path)
	case IsGGUF(path):
		f.gguf = path
	}
	return f, err
}

const (
	configName = "config.json"
	maxConfig  = 4 << 20
	// settingsKey is the key of a configuration that describes quantised weights, or packed ones.
	settingsKey = "quantization_config"
)

// config is a config.json as it is stored.
type config struct {
	text      []byte
	object    *orderedjson.Object
	quantised *quantized.Config // nil: nothing that is decoded here
}

// storedConfig reads the configuration of a folder; nil where there is none, and where it is no JSON object, which
// whoever reads it will say.
func (f *form) storedConfig() (*config, error) {
	text, err := safefile.ReadIn(f.path, configName, maxConfig)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, safefile.ErrTooLarge) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	object, err := orderedjson.Parse(text)
	if err != nil {
		return nil, nil
	}

	c := &config{text: text, object: object}
	raw := object.Get(settingsKey)
	if raw == nil || string(raw) == "null" {
		c.quantised, err = f.oldSettings()
		return c, err
	}

	c.quantised, err = settings(raw)
	if err != nil {
		problem := strings.TrimPrefix(err.Error(), quantized.ErrConfig.Error()+": ") // which names the key too
		return nil, &arch.ConfigError{
			File: filepath.Join(f.path, configName), Key: settingsKey, Problem: problem, Err: err,
		}
	}

	return c, nil
}

// oldName is where GPTQ's tools wrote their settings before config.json had a place for them.
const oldName = "quantize_config.json"

// oldSettings reads the settings of a folder of GPTQ's matrices whose config.json has none; nil where there are none,
// and where they are left over beside weights that are not quantised.
func (f *form) oldSettings() (*quantized.Config, error) {
	text, errText := safefile.ReadIn(f.path, oldName, maxConfig)
	if errors.Is(errText, fs.ErrNotExist) {
		return nil, nil
	}

	dir, err := safetensors.OpenDir(f.path)
	if err != nil {
		return nil, nil // whoever reads the weights says it
	}
	defer dir.Close()
	if !slices.ContainsFunc(dir.Names(), func(name string) bool { return strings.HasSuffix(name, ".qweight") }) {
		return nil, nil
	}
	if errText != nil {
		return nil, errText
	}

	fault := func(err error) error {
		problem := strings.TrimPrefix(err.Error(), quantized.ErrConfig.Error()+": ")
		return &arch.ConfigError{File: filepath.Join(f.path, oldName), Problem: problem, Err: err}
	}

	object, err := orderedjson.Parse(text)
	if err != nil {
		return nil, fault(fmt.Errorf("%w: not a JSON object: %w", quantized.ErrConfig, err))
	}
	if !object.Has("quant_method") {
		object.Set("quant_method", json.RawMessage(`"gptq"`))
	}
	if text, err = object.Indent(); err != nil {
		return nil, fault(err)
	}

	c, err := quantized.ParseConfig(text)
	if err != nil {
		return nil, fault(err)
	}
	return c, nil
}

// errBoth: matrices that are quantised first and packed then.
var errBoth = errors.New("matrices that are both quantised and packed as bitmasks are not read")

// settings reads a quantization_config; nil where it describes nothing that is decoded here: bitmasks alone, which the
// engine takes as they are.
func settings(raw json.RawMessage) (*quantized.Config, error) {
	var s struct {
		Method   string `json:"quant_method"`
		Sparsity struct {
			Format string `json:"format"`
		} `json:"sparsity_config"`
		Groups map[string]json.RawMessage `json:"config_groups"`
	}
	if err := json.Unmarshal(raw, &s); err == nil && s.Sparsity.Format != "" && s.Sparsity.Format != "dense" {
		if s.Method == "" || s.Method == "compressed-tensors" && len(s.Groups) == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: sparsity_config has format %.40q, quant_method is %.40q", errBoth,
			s.Sparsity.Format, s.Method)
	}

	return quantized.ParseConfig(raw)
}

// plainConfig is the text of config.json as it belongs to the tensors that [Open] gives; nil where it is the file as it
// stands there.
func (f *form) plainConfig() ([]byte, error) {
	c, err := f.storedConfig()
	if err != nil || c == nil || c.quantised == nil {
		return nil, err
	}

	s, err := f.open()
	if err != nil {
		return nil, err
	}
	defer s.Close()

	object := c.object.Clone()
	object.Delete(settingsKey)
	if t := s.dtypeOver(declared(object)); t != 0 {
		key := "torch_dtype"
		if object.Has("dtype") {
			key = "dtype"
		}
		if err := object.Put(key, dtype.Torch(t)); err != nil {
			return nil, err
		}
	}

	return object.Indent()
}

// declared is the element type that a configuration gives; 0 where it gives none that is known.
func declared(o *orderedjson.Object) safetensors.DType {
	for _, key := range []string{"dtype", "torch_dtype"} {
		var name string
		if o.Decode(key, &name) {
			return dtype.ParseTorch(name)
		}
	}
	return 0
}

// dtypeOver is the type that a configuration has to give so that the values of all matrices are numbers of it, where
// it gives t now: that of the matrices, or F32 where they differ.
func (s *Source) dtypeOver(t safetensors.DType) safetensors.DType {
	for _, c := range s.coded {
		switch {
		case t == 0:
			t = c.info.DType
		case t != c.info.DType && t != safetensors.F64:
			t = safetensors.F32
		}
	}
	return t
}

// Place is the path by which messages name a file beside the weights of the model at path.
func Place(path, name string) string {
	if f, err := formOf(path); err == nil && !f.folder {
		return path
	}
	return filepath.Join(path, name)
}
