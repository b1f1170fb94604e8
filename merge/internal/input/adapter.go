package input

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// ErrAdapter: an adapter that cannot be added to the weights.
var ErrAdapter = errors.New("adapter cannot be merged")

const (
	configName  = "adapter_config.json"
	weightsName = "adapter_model.safetensors"
	configLimit = 1 << 20
	// rankLimit bounds the factors that are held in memory.
	rankLimit = 1 << 14
)

// settings is what counts of adapter_config.json.
type settings struct {
	Type        string             `json:"peft_type"`
	Rank        int                `json:"r"`
	Alpha       float64            `json:"lora_alpha"`
	Stabilized  bool               `json:"use_rslora"`
	Decomposed  bool               `json:"use_dora"`
	Ranks       map[string]int     `json:"rank_pattern"`
	Alphas      map[string]float64 `json:"alpha_pattern"`
	FanInFanOut bool               `json:"fan_in_fan_out"`
}

// change is what an adapter does to one tensor.
type change struct {
	instead     string // the adapter's own tensor takes its place
	left, right []float32
	rank        int
}

// adapter is an open PEFT adapter of kind LoRA.
type adapter struct {
	dir     string
	file    *safetensors.File
	config  settings
	changes map[string]*change // by the model's tensor
}

func openAdapter(dir string, model *Model) (*adapter, error) {
	a := &adapter{dir: dir, changes: map[string]*change{}}
	if err := a.readConfig(); err != nil {
		return nil, err
	}

	f, err := safetensors.Open(filepath.Join(dir, weightsName))
	if err != nil {
		return nil, err
	}

	a.file = f
	if err := a.match(model); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return a, nil
}

func (a *adapter) readConfig() error {
	path := filepath.Join(a.dir, configName)
	f, err := safefile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, configLimit))
	if err != nil {
		return err
	}

	if err := json.Unmarshal(text, &a.config); err != nil {
		return fmt.Errorf("%s: %w: %w", path, err, ErrAdapter)
	}

	switch c := a.config; {
	case !strings.EqualFold(c.Type, "lora"):
		return fmt.Errorf("%s: peft_type %.50q, only LORA can be added to weights: %w", path, c.Type, ErrAdapter)
	case c.Decomposed:
		return fmt.Errorf("%s: use_dora rescales whole weights, which needs the adapter folded first: %w", path,
			ErrAdapter)
	}

	return nil
}

// pairs are the names of the two factors: what is multiplied from the right, and from the left.
var pairs = [][2]string{{".lora_A.weight", ".lora_B.weight"}, {".lora_embedding_A", ".lora_embedding_B"}}

// match finds the model's tensor for each of the adapter's.
func (a *adapter) match(model *Model) error {
	names := a.file.Names()
	for _, name := range names {
		done := false
		for i, p := range pairs {
			if module, ok := strings.CutSuffix(name, p[0]); ok {
				if err := a.product(model, module, p, i == 1); err != nil {
					return err
				}
				done = true
			} else if module, ok := strings.CutSuffix(name, p[1]); ok {
				if !slices.Contains(names, module+p[0]) {
					return a.fault(name, "its other factor %q is missing", module+p[0])
				}
				done = true
			}
		}

		if !done {
			if err := a.replacement(model, name); err != nil {
				return err
			}
		}
	}

	return nil
}

func (a *adapter) fault(name, format string, args ...any) error {
	return fmt.Errorf("%s: tensor %q: %s: %w", a.file.Path(), name, fmt.Sprintf(format, args...), ErrAdapter)
}

// target is the model's tensor of a module's parameter.
func target(model *Model, module, parameter string) (safetensors.Info, bool) {
	module = strings.TrimPrefix(module, "base_model.model.")
	for _, saved := range []string{".modules_to_save.default", ".base_layer"} {
		module = strings.TrimSuffix(module, saved)
	}

	for _, name := range []string{
		module, strings.TrimPrefix(module, "model."), "model." + module,
		strings.TrimPrefix(module, "transformer."), "transformer." + module,
	} {
		if info, ok := model.Info(name + "." + parameter); ok {
			return info, true
		}
	}

	return safetensors.Info{}, false
}

// replacement notes a tensor that takes the place of the model's: modules_to_save and biases.
func (a *adapter) replacement(model *Model, name string) error {
	at := strings.LastIndexByte(name, '.')
	if at < 0 || strings.Contains(name, "lora_") {
		return a.fault(name, "not known")
	}

	info, ok := target(model, name[:at], name[at+1:])
	if !ok {
		return a.fault(name, "the model has no such tensor")
	}

	own, _ := a.file.Info(name)
	if !slices.Equal(own.Shape, info.Shape) {
		return a.fault(name, "shape %v, the model's is %v", own.Shape, info.Shape)
	}

	a.changes[info.Name] = &change{instead: name}
	return nil
}

// product reads the factors of a module, scaled.
func (a *adapter) product(model *Model, module string, pair [2]string, embedding bool) error {
	info, ok := target(model, module, "weight")
	if !ok {
		return a.fault(module+pair[0], "the model has no such module")
	}

	down, downShape, err := a.factor(module + pair[0])
	if err != nil {
		return err
	}

	up, upShape, err := a.factor(module + pair[1])
	if err != nil {
		return err
	}

	rank := downShape[0]
	if upShape[1] != rank || rank < 1 || rank > rankLimit {
		return a.fault(module+pair[1], "factors of shapes %v and %v do not go together", upShape, downShape)
	}

	scale, err := a.scale(module, rank)
	if err != nil {
		return err
	}

	for i := range up {
		up[i] *= scale
	}

	// The product up·down is [out, in]; embeddings and some layers are stored the other way round.
	c := &change{left: up, right: down, rank: rank}
	want := []int64{int64(upShape[0]), int64(downShape[1])}
	if embedding || a.config.FanInFanOut && (want[0] == want[1] || !slices.Equal(info.Shape, want)) {
		c.left, c.right = turned(down, downShape), turned(up, upShape)
		want[0], want[1] = want[1], want[0]
	}

	if !slices.Equal(info.Shape, want) {
		return a.fault(module+pair[0], "the product is %v, the model's tensor %q %v", want, info.Name, info.Shape)
	}

	a.changes[info.Name] = c
	return nil
}

// factor reads a matrix.
func (a *adapter) factor(name string) ([]float32, [2]int, error) {
	info, ok := a.file.Info(name)
	if !ok {
		return nil, [2]int{}, a.fault(name, "missing")
	}

	if len(info.Shape) != 2 {
		return nil, [2]int{}, a.fault(name, "shape %v, want a matrix", info.Shape)
	}

	data, err := a.file.Bytes(name)
	if err != nil {
		return nil, [2]int{}, err
	}

	src, err := stream.NewMapped(data, info.DType, 0, nil)
	if err != nil {
		return nil, [2]int{}, a.fault(name, "%v", err)
	}

	out := make([]float32, info.Elements())
	return out, [2]int{int(info.Shape[0]), int(info.Shape[1])}, src.Read(out, 0)
}

// scale is alpha/rank, or alpha/√rank, with the patterns of the configuration.
func (a *adapter) scale(module string, rank int) (float32, error) {
	module = strings.TrimPrefix(module, "base_model.model.")
	want, alpha := a.config.Rank, a.config.Alpha
	if r, ok := pattern(a.config.Ranks, module); ok {
		want = r
	}
	if v, ok := pattern(a.config.Alphas, module); ok {
		alpha = v
	}
	if want != rank {
		return 0, a.fault(module, "rank %d, the configuration says %d", rank, want)
	}
	if a.config.Stabilized {
		return float32(alpha / math.Sqrt(float64(rank))), nil
	}

	return float32(alpha / float64(rank)), nil
}

// pattern finds the entry whose key is the module's name or its end behind a dot; the longest counts.
func pattern[T any](entries map[string]T, module string) (value T, ok bool) {
	longest := -1
	for key, v := range entries {
		if (module == key || strings.HasSuffix(module, "."+key)) && len(key) > longest {
			value = v
			ok = true
			longest = len(key)
		}
	}
	return value, ok
}

// turned is a transposed copy.
func turned(x []float32, shape [2]int) []float32 {
	out := make([]float32, len(x))
	for r := range shape[0] {
		for c := range shape[1] {
			out[c*shape[0]+r] = x[r*shape[1]+c]
		}
	}
	return out
}
