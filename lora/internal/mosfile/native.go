// Package mosfile reads and writes the folders of adapters that PEFT's LoRA format cannot hold as they are:
// Mixture of Shards with its pools and lists, VeRA, PRoLoRA. A folder has two files like PEFT's,
// adapter_config.json, whose peft_type names the kind, and adapter_model.safetensors.
package mosfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/lora/internal/mos"
	"github.com/modelcompress/compress/safetensors"
)

// Names of the two files.
const (
	ConfigName = "adapter_config.json"
	ModelName  = "adapter_model.safetensors"
)

// maxConfig bounds the configuration file.
const maxConfig = 4 << 20

// Read opens the adapter in a folder for a base. Sizes come from the configuration and the base; a tensor that
// is missing, of another shape, not finite, or that nothing asks for is an error.
func Read(dir string, base kinds.Base) (*adapter.Adapter, error) {
	text, err := readSmall(filepath.Join(dir, ConfigName))
	if err != nil {
		return nil, err
	}

	c, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ConfigName), err)
	}

	path := filepath.Join(dir, ModelName)
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	a, err := Load(f, *c, base)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	return a, nil
}

// Load fills an adapter of a known configuration from the tensors of a file.
func Load(f *safetensors.File, c adapter.Config, base kinds.Base) (*adapter.Adapter, error) {
	if err := fits(f, &c, base.Modules()); err != nil {
		return nil, err
	}

	need, err := kinds.Elements(&c, base.Modules())
	if err != nil {
		return nil, err
	}

	if have := dataSize(f); need > have { // an element takes at least a byte
		return nil, fmt.Errorf("%w: %d elements are configured, the file holds %d bytes", adapter.ErrBase, need, have)
	}

	a, err := kinds.Empty(c, base)
	if err != nil {
		return nil, err
	}

	l := loader{f: f, left: map[string]bool{}}
	for _, n := range f.Names() {
		l.left[n] = true
	}

	for _, p := range a.Params() {
		if err := l.param(p); err != nil {
			return nil, err
		}
	}

	for _, p := range mos.Pools(a) {
		if err := l.lists(p); err != nil {
			return nil, err
		}
	}

	for _, n := range f.Names() {
		if l.left[n] {
			return nil, fmt.Errorf("%w: tensor %.200q belongs to no module that the configuration adapts",
				adapter.ErrFile, n)
		}
	}

	return a, nil
}

// fits compares the shapes of the pools with the base before anything is allocated, so that an adapter of
// another base is recognised by its first tensor that does not fit.
func fits(f *safetensors.File, c *adapter.Config, modules []adapter.Module) error {
	if c.Kind != adapter.MoS {
		return nil
	}

	chosen, err := c.Chosen(modules)
	if err != nil {
		return err
	}

	types, err := mos.Types(chosen)
	if err != nil {
		return err
	}

	l := loader{f: f, left: map[string]bool{}}
	for _, t := range types {
		g, err := mos.Sizes(c, t)
		if err != nil {
			return err
		}

		for side, width := range []int{g.In / g.Shards, g.Out / g.Shards} {
			if _, err := l.info("mos."+t.Name+".pool_"+"AB"[side:side+1],
				[]int64{int64(g.Rows()), int64(width)}); err != nil {
				return err
			}
		}
	}

	return nil
}

func dataSize(f *safetensors.File) int64 {
	var n int64
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		n += info.Size
	}
	return n
}

// loader reads tensors and strikes them off.
type loader struct {
	f    *safetensors.File
	left map[string]bool
}

// info finds a tensor of the given shape.
func (l *loader) info(name string, shapes ...[]int64) (safetensors.Info, error) {
	info, ok := l.f.Info(name)
	if !ok {
		return info, fmt.Errorf("%w: tensor %.200q is missing", adapter.ErrFile, name)
	}

	delete(l.left, name)

	if !slices.ContainsFunc(shapes, func(s []int64) bool { return slices.Equal(s, info.Shape) }) {
		return info, fmt.Errorf("%w: tensor %.200q has shape %v, the base and the configuration ask for %v",
			adapter.ErrBase, name, info.Shape, shapes[0])
	}

	return info, nil
}

func (l *loader) param(p *adapter.Param) error {
	rows, cols := int64(p.Value.Rows), int64(p.Value.Cols)
	shapes := [][]int64{{rows, cols}}
	if rows == 1 {
		shapes = append(shapes, []int64{cols})
	}

	info, err := l.info(p.Name, shapes...)
	if err != nil {
		return err
	}

	return l.f.View(p.Name, func(data []byte) error {
		if err := dtype.Decode(p.Data(), data, info.DType); err != nil {
			return fmt.Errorf("%w: tensor %.200q: %w", adapter.ErrFile, p.Name, err)
		}
		if i := dtype.NonFinite(p.Data()); i >= 0 {
			return fmt.Errorf("%w: tensor %.200q: element %d is not finite", adapter.ErrFile, p.Name, i)
		}
		return nil
	})
}

// lists reads which shards the blocks use.
func (l *loader) lists(p *mos.Pool) error {
	shape := []int64{int64(p.Blocks), int64(p.Rank), int64(p.Shards)}
	for _, side := range []struct {
		name string
		to   *[]int32
	}{{"A", &p.IndexA}, {"B", &p.IndexB}} {
		name := "mos." + p.Type + ".index_" + side.name
		info, err := l.info(name, shape)
		if err != nil {
			return err
		}

		if info.DType != safetensors.I32 {
			return fmt.Errorf("%w: tensor %.200q is %s, not I32", adapter.ErrFile, name, info.DType)
		}
		if err := l.f.View(name, func(data []byte) error {
			buf, err := kernels.Wrap(kernels.U8, data)
			*side.to = int32s(buf.Bytes())
			return err
		}); err != nil {
			return err
		}
	}

	return p.Check()
}

func int32s(p []byte) []int32 {
	x := make([]int32, len(p)/4)
	for i := range x {
		x[i] = int32(uint32(p[4*i]) | uint32(p[4*i+1])<<8 | uint32(p[4*i+2])<<16 | uint32(p[4*i+3])<<24)
	}
	return x
}

// Write writes an adapter to a folder that appears once it is complete. The type of the tensors is F32 or BF16.
// The rule says what may be in its place.
func Write(dir string, a *adapter.Adapter, t safetensors.DType, rule stage.Rule) error {
	return stage.Write(dir, rule, func(at string) error { return Fill(at, a, t) })
}

// Fill writes the two files into an existing folder.
func Fill(dir string, a *adapter.Adapter, t safetensors.DType) error {
	text, err := format(a)
	if err != nil {
		return err
	}
	if err := weights(filepath.Join(dir, ModelName), a, t); err != nil {
		return err
	}
	return safefile.WriteFile(filepath.Join(dir, ConfigName), text, 0o666)
}

// weights writes the tensors.
func weights(path string, a *adapter.Adapter, t safetensors.DType) error {
	var infos []safetensors.Info
	for _, p := range a.Params() {
		infos = append(infos, safetensors.Info{Name: p.Name, DType: t, Shape: shapeOf(a, p)})
	}

	pools := mos.Pools(a)
	for _, p := range pools {
		shape := []int64{int64(p.Blocks), int64(p.Rank), int64(p.Shards)}
		for _, side := range []string{"A", "B"} {
			infos = append(infos,
				safetensors.Info{Name: "mos." + p.Type + ".index_" + side, DType: safetensors.I32, Shape: shape})
		}
	}

	w, err := safetensors.Create(path, infos, map[string]string{"format": "pt"}, safetensors.Options{})
	if err != nil {
		return err
	}

	for _, p := range a.Params() {
		data := make([]byte, len(p.Data())*dtype.Size(t))
		err = errors.Join(err, dtype.Encode(data, p.Data(), t), w.WriteTensor(p.Name, data))
	}

	for _, p := range pools {
		err = errors.Join(err, w.WriteTensor("mos."+p.Type+".index_A", bytesOf(p.IndexA)),
			w.WriteTensor("mos."+p.Type+".index_B", bytesOf(p.IndexB)))
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}

	return nil
}

// shapeOf is a parameter's shape in the file: whole tensors have the base's.
func shapeOf(a *adapter.Adapter, p *adapter.Param) []int64 {
	for _, w := range a.Whole {
		if w.Value == p {
			return w.Shape
		}
	}
	return []int64{int64(p.Value.Rows), int64(p.Value.Cols)}
}

func bytesOf(x []int32) []byte {
	p := make([]byte, 0, 4*len(x))
	for _, v := range x {
		p = append(p, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	return p
}

// readSmall reads a file that must not be large.
func readSmall(path string) ([]byte, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, err
	}

	if len(text) > maxConfig {
		return nil, fmt.Errorf("%s: %w: larger than %d bytes", path, adapter.ErrConfig, maxConfig)
	}

	return text, nil
}

// Type reads the peft_type of an adapter folder.
func Type(dir string) (string, error) {
	path := filepath.Join(dir, ConfigName)
	text, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", failure.Hinted(fmt.Errorf("%s: %w: no adapter here, %s is missing: %w", dir, adapter.ErrFile,
			ConfigName, fs.ErrNotExist),
			"name the folder that was written by training, with "+ConfigName+" and "+ModelName)
	}
	if err != nil {
		return "", err
	}

	var c struct {
		Type string `json:"peft_type"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return "", fmt.Errorf("%s: %w: %w", path, adapter.ErrConfig, err)
	}

	return c.Type, nil
}
