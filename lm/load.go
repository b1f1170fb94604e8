package lm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// maxConfigSize bounds the JSON files of a checkpoint that are read whole.
const maxConfigSize = 4 << 20

// Load opens a checkpoint folder (config.json, one or several .safetensors files) on a device. Weights stay in their storage
// type. Errors about the configuration are [ConfigError]s; the others wrap one of this package's errors, or one of package
// safetensors, and name file and tensor.
func Load(ctx context.Context, dir string, dev kernels.Device, o Options) (*Model, error) {
	config, err := LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	source, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	m := &Model{
		config: config, opts: o, dir: dir, source: source, dev: dev, ops: dev.Ops(), host: dev.Info().Host,
		params: map[string]*param{}, tables: map[int]*ropeTable{},
	}
	if err := m.open(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// LoadConfig reads the config.json of a checkpoint folder.
func LoadConfig(dir string) (*Config, error) {
	text, err := readSmall(dir, "config.json")
	if err != nil {
		return nil, err
	}
	return ParseConfig(filepath.Join(dir, "config.json"), text)
}

// readSmall reads a file of a folder that must not be large. No link out of the folder is followed.
func readSmall(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	if len(text) > maxConfigSize {
		return nil, &ConfigError{File: filepath.Join(dir, name), Problem: fmt.Sprintf("larger than %d bytes", maxConfigSize)}
	}
	return text, nil
}

// open finds and checks every tensor, then makes them resident unless they are streamed.
func (m *Model) open(ctx context.Context) error {
	b := &builder{m: m, taken: map[string]bool{}}
	b.choosePrefix()
	if err := b.count(); err != nil {
		return err
	}
	if err := b.build(); err != nil {
		return err
	}
	if err := b.leftovers(); err != nil {
		return err
	}
	if err := m.loadStops(); err != nil {
		return err
	}
	if m.opts.Stream {
		return nil
	}
	for _, name := range m.names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.bind(m.params[name]); err != nil {
			return err
		}
	}
	return nil
}

// builder assembles the model from the architecture's table.
type builder struct {
	m       *Model
	prefix  string // what the checkpoint leaves out of the names
	taken   map[string]bool
	missing []string
}

// choosePrefix finds out whether the checkpoint leaves the optional prefix out.
func (b *builder) choosePrefix() {
	a := b.m.config.Arch
	if a.OptionalPrefix == "" {
		return
	}
	for _, t := range a.Tensors {
		if t.Role == arch.Embed {
			_, long := b.m.source.Info(t.Name)
			_, short := b.m.source.Info(strings.TrimPrefix(t.Name, a.OptionalPrefix))
			if short && !long {
				b.prefix = a.OptionalPrefix
			}
		}
	}
}

// count refuses a configuration that asks for more tensors than there are, before anything of that size is made.
func (b *builder) count() error {
	c := b.m.config
	var want int64
	for _, t := range c.Arch.Tensors {
		switch {
		case !t.PerBlock():
		case t.PerExpert():
			for _, mixture := range c.Mixture {
				if mixture {
					want += int64(c.Experts)
				}
			}
		case t.When == "":
			want += int64(c.Layers)
		}
	}
	if have := len(b.m.source.Names()); want > int64(have) {
		return fmt.Errorf("%s: %w: the configuration (%d layers%s) describes at least %d tensors, the files hold %d",
			b.m.dir, ErrMissingTensor, c.Layers, expertCount(c), want, have)
	}
	return nil
}

func expertCount(c *Config) string {
	if c.Experts == 0 {
		return ""
	}
	return fmt.Sprintf(", %d experts", c.Experts)
}

// build takes the tensors block by block in the order of the table.
func (b *builder) build() error {
	m := b.m
	tensors := m.config.Arch.Tensors
	m.blocks = make([]*block, m.config.Layers)
	for l := range m.blocks {
		m.blocks[l] = newBlock(l, m.config)
	}
	for i := range tensors {
		if t := &tensors[i]; !t.PerBlock() {
			if err := b.take(t, -1, -1); err != nil {
				return err
			}
		}
	}
	for l := range m.blocks {
		for i := range tensors {
			if t := &tensors[i]; t.PerBlock() {
				if err := b.takeBlock(t, l); err != nil {
					return err
				}
			}
		}
		m.blocks[l].finish()
		if m.blocks[l].mixture && m.blocks[l].mlpPost.w != nil {
			return fmt.Errorf("%s: a norm after a mixture is not supported", m.dir)
		}
	}
	if len(b.missing) > 0 {
		return b.missingError()
	}
	if m.config.Tied {
		m.head = m.embed
		m.output = append(m.output, m.embed)
	}
	return nil
}

func (b *builder) takeBlock(t *arch.Tensor, l int) error {
	if !t.PerExpert() {
		return b.take(t, l, -1)
	}
	for e := range b.m.config.Experts {
		if err := b.take(t, l, e); err != nil {
			return err
		}
	}
	return nil
}

// take finds one tensor, checks it and puts it where it belongs.
func (b *builder) take(t *arch.Tensor, l, expert int) error {
	m := b.m
	if !m.config.holds(t.When, l) {
		return nil
	}
	name := strings.TrimPrefix(arch.Expand(t.Name, l, max(expert, 0)), b.prefix)
	info, ok := m.source.Info(name)
	if !ok {
		b.missing = append(b.missing, name)
		return nil
	}
	p, err := b.check(t, info)
	if err != nil {
		return err
	}
	p.block, p.expert = l, expert
	b.taken[name], m.params[name] = true, p
	if l < 0 {
		m.place(p)
	} else {
		m.blocks[l].place(p)
	}
	return nil
}

// check compares type and shape with the configuration.
func (b *builder) check(t *arch.Tensor, info safetensors.Info) (*param, error) {
	c := b.m.config
	want := make([]int64, len(t.Shape))
	for i, d := range t.Shape {
		want[i] = c.dim(d)
	}
	if !slices.Equal(want, info.Shape) {
		return nil, b.m.tensorError(info.Name, fmt.Errorf("%w: shape %v, but config.json gives %v (%s)",
			ErrShape, info.Shape, want, strings.Join(c.dimKeys(t.Shape, want, info.Shape), ", ")))
	}
	if _, ok := dtypes[info.DType]; !ok {
		return nil, b.m.tensorError(info.Name, fmt.Errorf("%w: %s; known: F32, BF16, F16, F64", ErrDType, info.DType))
	}
	p := &param{
		name: info.Name, role: t.Role, bias: t.Part == "bias", rows: 1, cols: int(want[len(want)-1]),
		transposed: t.Transposed, stored: info.DType,
	}
	if len(want) == 2 {
		p.rows = int(want[0])
	}
	return p, nil
}

// place puts a tensor outside of the blocks where it belongs.
func (m *Model) place(p *param) {
	g := &m.output
	switch {
	case p.role == arch.Embed:
		m.embed, g = p, &m.input
	case p.role == arch.Positions:
		m.positions, g = p, &m.input
	case p.role == arch.FinalNorm:
		m.finalNorm.set(p)
	case p.bias:
		m.headBias = p
	default:
		m.head = p
	}
	*g = append(*g, p)
}

// missingError lists the first missing tensors.
func (b *builder) missingError() error {
	list := b.missing
	more := ""
	if len(list) > 5 {
		list, more = list[:5], ", …"
	}
	hint := ""
	if len(b.missing) == 1 && !b.m.config.Tied && strings.HasPrefix(b.missing[0], "lm_head.") {
		hint = " (a model whose head is the token table says tie_word_embeddings: true)"
	}
	return fmt.Errorf("%s: %w: %d of a %s with %d layers: %s%s%s",
		b.m.dir, ErrMissingTensor, len(b.missing), b.m.config.ModelType, b.m.config.Layers, strings.Join(list, ", "), more, hint)
}

// leftovers deals with the tensors that the table does not name.
func (b *builder) leftovers() error {
	m := b.m
	var unexpected []string
	for _, name := range m.source.Names() {
		if b.taken[name] {
			m.names = append(m.names, name)
			continue
		}
		m.extra = append(m.extra, name)
		if m.config.Arch.IsBuffer(name) || m.opts.AllowExtra {
			continue
		}
		if same, err := b.tiedCopy(name); err != nil {
			return err
		} else if same {
			m.tied = append(m.tied, name)
		} else {
			unexpected = append(unexpected, name)
		}
	}
	if len(unexpected) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w: %d a %s does not have: %s", m.dir, ErrExtraTensor, len(unexpected), m.config.ModelType, strings.Join(unexpected, ", "))
}

// tiedCopy reports whether a tensor is the head of a tied model, stored although it equals the token table.
func (b *builder) tiedCopy(name string) (bool, error) {
	m := b.m
	isHead := slices.ContainsFunc(m.config.Arch.Tensors, func(t arch.Tensor) bool {
		return t.Role == arch.Head && t.Part == "" && t.Name == name
	})
	if !isHead || !m.config.Tied {
		return false, nil
	}
	same, err := sameBytes(m.source, name, m.embed.name)
	if err == nil && !same {
		err = m.tensorError(name, fmt.Errorf("%w: tie_word_embeddings is true, but it differs from %s", ErrExtraTensor, m.embed.name))
	}
	return same, err
}

// sameBytes compares two tensors without holding either.
func sameBytes(s *safetensors.Dir, a, b string) (bool, error) {
	x, _ := s.Info(a)
	y, _ := s.Info(b)
	if x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) {
		return false, nil
	}
	p, q := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < x.Size; off += int64(len(p)) {
		n := min(int64(len(p)), x.Size-off)
		if _, err := s.ReadAt(a, p[:n], off); err != nil {
			return false, err
		}
		if _, err := s.ReadAt(b, q[:n], off); err != nil {
			return false, err
		}
		if !bytes.Equal(p[:n], q[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// loadStops finds the tokens that end generation.
func (m *Model) loadStops() error {
	m.stop = m.config.EOS
	text, err := readSmall(m.dir, "generation_config.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r := &configReader{file: filepath.Join(m.dir, "generation_config.json"), used: map[string]bool{}}
	if err := json.Unmarshal(text, &r.raw); err != nil {
		return &ConfigError{File: r.file, Problem: "not a JSON object: " + err.Error(), Err: err}
	}
	if ids := r.ids("eos_token_id"); len(ids) > 0 {
		m.stop = ids
	}
	return r.err
}

// fileOf is the path of the file that holds a tensor.
func (m *Model) fileOf(name string) string {
	return filepath.Join(m.dir, m.source.ShardOf(name))
}

// dimKeys names the configuration keys behind the dimensions that disagree.
func (c *Config) dimKeys(dims []string, want, have []int64) []string {
	var keys []string
	for i, d := range dims {
		if len(want) == len(have) && want[i] == have[i] {
			continue
		}
		for _, f := range dimFields[d] {
			if k := c.Arch.Config[f].Key; k != "" && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// dimFields lists the configuration fields that a dimension is computed from.
var dimFields = map[string][]string{
	"vocab": {"vocab"}, "hidden": {"hidden"}, "q": {"heads", "head_dim"}, "kv": {"kv_heads", "head_dim"},
	"qkv": {"heads", "kv_heads", "head_dim", "hidden"}, "head_dim": {"head_dim"}, "inner": {"inner"}, "gate_up": {"inner"},
	"positions": {"positions"}, "experts": {"experts"}, "expert_inner": {"expert_inner"}, "shared_inner": {"shared_inner"},
}
