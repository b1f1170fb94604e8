package lm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/internal/layer"
	"github.com/modelcompress/compress/lm/internal/packed"
	"github.com/modelcompress/compress/safetensors"
)

// Config is a model's configuration; see [arch.Config].
type Config = arch.Config

// ConfigError says which key of which configuration file is wrong.
type ConfigError = arch.ConfigError

// maxConfigSize bounds the JSON files of a checkpoint that are read whole.
const maxConfigSize = 4 << 20

// Load opens a checkpoint on a device: a folder (config.json, one or several .safetensors files) or a GGUF file.
// Weights stay in their storage type. Quantised matrices stay in their bits where kernels multiply with these, and are
// views of the files where they lie in them as kernels have them; others are decoded to the type of their values when
// they are needed, and with [Options].Stream those of one block are in memory. Matrices of blocks that are packed as
// bitmasks (sparse-bitmask of compressed-tensors) stay packed and are multiplied as they are, unless the architecture
// has them transposed; other packed ones are expanded. Errors about the configuration are [ConfigError]s; the others
// wrap one of this package's errors, or one of package safetensors, and name file and tensor.
func Load(ctx context.Context, dir string, dev kernels.Device, o Options) (*Model, error) {
	seen := stage.See(dir)
	config, isPacked, err := loadConfig(dir)
	if err != nil {
		return nil, err
	}

	if o.KVBits != 0 && o.KVBits != 8 {
		return nil, fmt.Errorf("%w: keys and values in %d bits; there are 8", ErrInput, o.KVBits)
	}
	if o.KVBits != 0 && !dev.Info().Host {
		return nil, fmt.Errorf("%w: keys and values in %d bits need a CPU", ErrInput, o.KVBits)
	}
	if n := o.KVPositions; n != 0 {
		windows := slices.ContainsFunc(config.Windows, func(w int) bool { return w > 0 })
		switch {
		case n < 8:
			return nil, fmt.Errorf("%w: keys and values of %d positions; want 8 or more", ErrInput, n)
		case !dev.Info().Host:
			return nil, fmt.Errorf("%w: keys and values of %d positions need a CPU", ErrInput, n)
		case windows || config.Rope != nil && !config.Rope.Static():
			return nil, fmt.Errorf("%s: %w: windows of attention, or rotations that depend on the length, do not go "+
				"with keys and values of %d positions", dir, ErrInput, n)
		}
	}
	if n := o.TopK; n != 0 {
		if n < 1 || n > config.Experts {
			return nil, fmt.Errorf("%s: %w: %d experts of a token, the model has %d", dir, ErrInput, n, config.Experts)
		}
		config.TopK = n
	}

	source, err := weights.Open(ctx, dir)
	if err != nil {
		return nil, err
	}

	dense, err := packed.Find(source, config, isPacked)
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}

	// Asked once: on a GPU every call goes to the driver.
	info := dev.Info()
	m := &Model{
		config: config, opts: o, dir: dir, seen: seen,
		source: source, dense: dense, dev: dev, ops: dev.Ops(), info: info,
		host: info.Host, params: map[string]*param{},
	}

	if err := m.open(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}

	return m, nil
}

// LoadConfig reads the config.json of a checkpoint folder. Every fault of its contents is a [ConfigError].
func LoadConfig(dir string) (*Config, error) {
	config, _, err := loadConfig(dir)
	return config, err
}

// loadConfig also reports whether matrices are packed.
func loadConfig(dir string) (c *Config, isPacked bool, err error) {
	text, err := readSmall(dir, "config.json")
	if err != nil {
		return nil, false, err
	}
	text, isPacked = packed.Plain(text)
	c, err = arch.ParseConfig(weights.Place(dir, "config.json"), text)
	return c, isPacked, err
}

// readSmall reads a file beside the weights of a model that must not be large.
func readSmall(dir, name string) ([]byte, error) {
	text, err := weights.ReadFile(dir, name, maxConfigSize)
	if errors.Is(err, safefile.ErrTooLarge) {
		return nil, &ConfigError{
			File:    weights.Place(dir, name),
			Problem: fmt.Sprintf("larger than %d bytes", maxConfigSize),
		}
	}
	return text, err
}

// open finds and checks every tensor, then makes them resident unless they are streamed.
func (m *Model) open(ctx context.Context) error {
	layout, err := arch.Resolve(m.config, m.dense, m.opts.AllowExtra)
	if err != nil {
		return err
	}

	if err := m.assemble(layout); err != nil {
		return err
	}

	if err := m.loadStops(); err != nil {
		return err
	}
	if m.opts.Stream {
		return nil
	}

	// Whatever names and shapes give away is refused before gigabytes are read.
	for _, name := range m.names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.bind(m.params[name]); err != nil {
			return err
		}
		if err := m.quantise(m.params[name]); err != nil {
			return err
		}
	}

	return nil
}

// assemble puts every parameter where the model uses it.
func (m *Model) assemble(layout *arch.Layout) error {
	m.blocks = make([]*block, m.config.Layers)
	for l := range m.blocks {
		m.blocks[l] = &block{Block: layer.NewBlock(l, m.config)}
	}

	for _, a := range layout.Params {
		info, _ := m.dense.Info(a.Name)
		if !dtype.IsFloat(info.DType) {
			return m.tensorError(a.Name, fmt.Errorf("%w: %s; known: F32, BF16, F16, F64", ErrDType, info.DType))
		}

		p := newParam(a, info.DType)
		p.packed = packed.As(m.dense, a.Name)
		m.params[p.Name] = p

		if p.block < 0 {
			m.place(a, p)
		} else {
			b := m.blocks[p.block]
			b.params = append(b.params, p)
			b.roles = append(b.roles, a)
			b.Place(a, &p.Weight)
		}
	}

	// Only now that every matrix has its place: a block's list of linears is in the order of use, not of the file.
	inner := make([]*layer.Block, len(m.blocks))
	for l, b := range m.blocks {
		b.finish()
		inner[l] = b.Block
		for _, l := range b.linears {
			m.params[l.Name].linear, m.params[l.Name].multiplied = true, !l.Transposed
		}
		if b.Mixture && (b.MLPPost.W != nil || m.config.PostNorm) {
			return fmt.Errorf("%s: block %d: a norm after a mixture is not supported", m.dir, l)
		}
	}

	m.setup = layer.NewSetup(m.config, m.dev, m.opts.Precision, inner)
	m.setup.KVBytes = m.opts.KVBits == 8

	if m.config.Tied {
		m.head = m.embed
		m.output = append(m.output, m.embed)
	}

	for _, name := range m.dense.Names() {
		if m.params[name] != nil {
			m.names = append(m.names, name)
		}
	}

	for _, p := range m.params {
		p.kept = m.keeps(p, p == m.embed || p == m.head)
	}

	m.layout, m.extra, m.tied = layout, layout.Extra, layout.Heads
	return m.checkTied()
}

// place puts a tensor outside of the blocks where it belongs.
func (m *Model) place(a arch.Param, p *param) {
	g := &m.output
	switch {
	case a.Role == arch.Embed:
		m.embed, g = p, &m.input
	case a.Role == arch.EmbedIn:
		m.embedIn, g = p, &m.input
	case a.Role == arch.Positions:
		m.positions, g = p, &m.input
	case a.Role == arch.FinalNorm:
		m.finalNorm.Set(&p.Weight, a.Bias)
	case a.Role == arch.EmbedOut:
		m.embedOut = p
	case a.Bias:
		m.headBias = p
	default:
		m.head = p
	}

	*g = append(*g, p)
}

// checkTied compares stored heads of a tied model with the token table.
func (m *Model) checkTied() error {
	for _, name := range m.tied {
		if m.embed.packed != nil || packed.As(m.dense, name) != nil {
			return m.tensorError(name, fmt.Errorf("%w: a packed table cannot be compared with it, and "+
				"tie_word_embeddings is true", ErrExtraTensor))
		}

		same, err := sameTensor(m.source, name, m.embed.Name)
		if err != nil {
			return err
		}

		if !same {
			return m.tensorError(name,
				fmt.Errorf("%w: it differs from %s, but tie_word_embeddings is true", ErrExtraTensor, m.embed.Name))
		}
	}

	return nil
}

// loadStops finds the tokens that end generation.
func (m *Model) loadStops() error {
	m.stop = m.config.EOS
	text, err := readSmall(m.dir, "generation_config.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}

	ids, err := arch.Stops(weights.Place(m.dir, "generation_config.json"), text)
	if len(ids) > 0 {
		m.stop = ids
	}

	return err
}

// Tensors is the parameters of a checkpoint, nothing loaded: as if no matrix were packed or quantised, and each expert
// had tensors of its own. Those that lie in one stored tensor are ranges of it.
type Tensors struct{ source *packed.Source }

// OpenTensors opens the files of a checkpoint, whose configuration is given. The errors are those of [Load].
func OpenTensors(ctx context.Context, dir string, c *Config) (*Tensors, error) {
	files, err := weights.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	found, err := packed.Find(files, c, false)
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return &Tensors{found}, nil
}

// Source is the checkpoint with its tensors as they are stored, or decoded.
func (t *Tensors) Source() safetensors.Source { return t.source.Files() }

// Layout is how the tensors are divided among the files of a new checkpoint: of at most maxShard bytes each, or where
// that is 0 as they are here, and those of a quantised model as is usual.
func (t *Tensors) Layout(maxShard int64) safetensors.DirOptions {
	return t.source.Files().Layout(maxShard)
}

// Close closes the files.
func (t *Tensors) Close() error { return t.source.Files().Close() }

// Names lists the parameters.
func (t *Tensors) Names() []string { return t.source.Names() }

// Info says what a parameter is.
func (t *Tensors) Info(name string) (safetensors.Info, bool) { return t.source.Info(name) }

// Shape gives a parameter's dimensions; false if there is none of that name.
func (t *Tensors) Shape(name string) ([]int64, bool) { return t.source.Shape(name) }

// File is the path of the file that holds a parameter, of the folder for an unknown one.
func (t *Tensors) File(name string) string { return t.source.File(name) }

// Parts lists the parameters that lie in a stored tensor of the fused layout, in their order there; nil for
// every other tensor.
func (t *Tensors) Parts(stored string) []arch.Part { return t.source.Parts(stored) }

// Place is where a parameter's bytes are: the stored tensor, and its first element there.
func (t *Tensors) Place(name string) (stored string, first int64) { return t.source.Place(name) }

// Bytes gives a parameter's data without copying it; not of one that is packed.
func (t *Tensors) Bytes(name string) ([]byte, error) { return t.source.Bytes(name) }

// ReadAt copies a part of a parameter, off bytes into it, as [safetensors.Dir.ReadAt] does; not of one that is
// packed. It does not read on into the parameter that follows in the same tensor.
func (t *Tensors) ReadAt(name string, b []byte, off int64) (int, error) {
	return t.source.ReadAt(name, b, off)
}
