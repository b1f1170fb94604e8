package lm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/safetensors"
)

// stored is a tensor and its bytes.
type stored struct {
	info safetensors.Info
	data []byte
}

// bitmasks is the quantization_config of a checkpoint with packed matrices.
func bitmasks() map[string]any {
	return map[string]any{
		"quant_method": "compressed-tensors", "version": "0.12.2", "transform_config": map[string]any{},
		"sparsity_config": map[string]any{
			"format": "sparse-bitmask", "targets": []string{"Linear"},
			"ignore": []string{"lm_head"},
		},
	}
}

// writeTensors writes a checkpoint folder.
func writeTensors(t testing.TB, config map[string]any, all []stored) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666); err != nil {
		t.Fatal(err)
	}

	var infos []safetensors.Info
	for _, s := range all {
		infos = append(infos, s.info)
	}

	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, s := range all {
		if err := w.WriteTensor(s.info.Name, s.data); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}

// readTensors reads a checkpoint folder whole, with three of five elements of every matrix that pruned picks
// set to zero.
func readTensors(t testing.TB, dir string, pruned func(name string) bool) (config map[string]any, all []stored) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}

	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}

	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	for k, name := range d.Names() {
		info, _ := d.Info(name)
		view, err := d.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		data := bytes.Clone(view)
		size := info.DType.Bits() / 8
		if len(info.Shape) == 2 && pruned(name) {
			for i := 0; i < len(data); i += size {
				if uniform(uint64(77+k), uint64(i)) < 0.6 {
					clear(data[i:][:size])
				}
			}
		}

		all = append(all, stored{safetensors.Info{Name: name, DType: info.DType, Shape: info.Shape}, data})
	}

	return config, all
}

// pack makes the four tensors of a packed matrix.
func pack(s stored) []stored {
	rows := s.info.Shape[0]
	cols := s.info.Shape[1]
	size := s.info.DType.Bits() / 8
	width := (cols + 7) / 8
	var shape, values, offsets []byte
	mask := make([]byte, rows*width)
	shape = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(shape, uint64(rows)), uint64(cols))

	zero := make([]byte, size)
	for i := range rows {
		offsets = binary.LittleEndian.AppendUint64(offsets, uint64(len(values)/size))

		for j := range cols {
			if v := s.data[int(i*cols+j)*size:][:size]; !bytes.Equal(v, zero) {
				values = append(values, v...)
				mask[i*width+j/8] |= 1 << (j % 8)
			}
		}
	}

	m := strings.TrimSuffix(s.info.Name, ".weight")
	return []stored{
		{safetensors.Info{Name: m + ".shape", DType: safetensors.I64, Shape: []int64{2}}, shape},
		{
			safetensors.Info{Name: m + ".compressed", DType: s.info.DType, Shape: []int64{int64(len(values) / size)}},
			values,
		},
		{safetensors.Info{Name: m + ".bitmask", DType: safetensors.U8, Shape: []int64{rows, width}}, mask},
		{safetensors.Info{Name: m + ".row_offsets", DType: safetensors.I64, Shape: []int64{rows}}, offsets},
	}
}

// packSome packs the matrices that pruned picks.
func packSome(config map[string]any, all []stored, pruned func(string) bool) (map[string]any, []stored) {
	config = maps.Clone(config)
	config["quantization_config"] = bitmasks()

	var out []stored
	for _, s := range all {
		if len(s.info.Shape) == 2 && pruned(s.info.Name) {
			out = append(out, pack(s)...)
		} else {
			out = append(out, s)
		}
	}

	return config, out
}

func inBlocks(name string) bool {
	return strings.HasSuffix(name, ".weight") && (strings.Contains(name, "layers.") || strings.Contains(name, "h."))
}

func anywhere(name string) bool { return strings.HasSuffix(name, ".weight") }

// pairOf writes a pruned checkpoint as it is and packed.
func pairOf(t testing.TB, dir string, pruned func(string) bool) (plain, packed string) {
	t.Helper()
	config, all := readTensors(t, dir, pruned)
	plain = writeTensors(t, config, all)
	config, all = packSome(config, all, pruned)
	return plain, writeTensors(t, config, all)
}

// elsewhere is a device whose memory is not the host's, as far as anyone can tell.
type elsewhere struct{ kernels.Device }

func (e elsewhere) Info() kernels.Info {
	info := e.Device.Info()
	info.Host = false
	return info
}

// matmulTolerance is for logits of size 1 from products of other orders of summation, a few layers deep.
const matmulTolerance = 2e-5

// A packed checkpoint is the model that the pruned one is, whatever its architecture, device and element type.
func TestPackedEqualsPruned(t *testing.T) {
	devs := map[string]kernels.Device{"cpu": cpuDevice(t, 2), "ref": ref.New(), "elsewhere": elsewhere{ref.New()}}
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			dtype, pruned := safetensors.BF16, inBlocks
			if len(name)%2 == 0 {
				dtype, pruned = safetensors.F32, anywhere
			}

			plain, packed := pairOf(t, recipe{config: config, dtype: dtype, seed: 9}.write(t, t.TempDir()), pruned)
			ids := tokens(4, 37, 12, 5, 1)
			want := load(t, plain, devs["ref"], Options{})
			whole := forward(t, want, ids, ForwardOptions{Logits: true})
			for name, dev := range devs {
				for _, stream := range []bool{false, true} {
					m := load(t, packed, dev, Options{Stream: stream})
					r := forward(t, m, ids, ForwardOptions{Logits: true})
					near(t, name, values(r.Logits), values(whole.Logits), matmulTolerance)
					sameModel(t, m, want)
				}
			}
		})
	}
}

// sameModel compares what two models say about themselves, and their parameters bit by bit.
func sameModel(t *testing.T, got, want *Model) {
	t.Helper()
	if got.NumParameters() != want.NumParameters() || !got.Packed() || want.Packed() {
		t.Errorf("%d parameters, %d are there", got.NumParameters(), want.NumParameters())
	}

	a, b := got.Tensors(), want.Tensors()
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		t.Fatalf("tensors %v, want %v", a, b)
	}

	for l := range got.Blocks() {
		if !slices.Equal(got.Linears(l), want.Linears(l)) {
			t.Errorf("block %d: linears %v, want %v", l, got.Linears(l), want.Linears(l))
		}
	}

	for _, name := range a {
		x, err := got.Param(name)
		if err != nil {
			t.Fatal(err)
		}

		y, err := want.Param(name)
		if err != nil {
			t.Fatal(err)
		}

		if !bytes.Equal(x.Buf.Bytes(), y.Buf.Bytes()) || x.Rows != y.Rows {
			t.Errorf("%s differs", name)
		}

		i, _ := got.Info(name)
		j, _ := want.Info(name)
		if i.DType != j.DType || i.Size != j.Size || !slices.Equal(i.Shape, j.Shape) {
			t.Errorf("%s: %v, want %v", name, i, j)
		}
	}
}

// The small trained model continues texts with the same tokens, and gives the same bits for any number of threads.
func TestPackedNano(t *testing.T) {
	plain, packed := pairOf(t, filepath.Join("..", "testdata", "nano", "base"), inBlocks)
	want := load(t, plain, cpuDevice(t, 1), Options{})

	ids := tokens(6, want.Config().Vocab, 40, 9)
	whole := forward(t, want, ids, ForwardOptions{Logits: true})
	var first []float32
	for _, threads := range []int{1, 2, 3} {
		m := load(t, packed, cpuDevice(t, threads), Options{})
		r := forward(t, m, ids, ForwardOptions{Logits: true})
		got := values(r.Logits)
		near(t, "logits", got, values(whole.Logits), matmulTolerance*float64(largest(values(whole.Logits))))

		if first == nil {
			first = got
		} else if !slices.Equal(first, got) {
			t.Errorf("%d threads give other bits", threads)
		}

		o := GenerateOptions{MaxTokens: 24, Stop: []int32{}}
		a, err := want.Generate(ctx, ids[1], o)
		if err != nil {
			t.Fatal(err)
		}

		b, err := m.Generate(ctx, ids[1], o)
		if err != nil || !slices.Equal(a, b) {
			t.Errorf("tokens %v (%v), want %v", b, err, a)
		}
	}
}

// Gradients are those of the pruned model: of hidden states through expanded matrices, of matrices dense.
func TestPackedGradients(t *testing.T) {
	for _, name := range []string{"llama", "mixtral", "gpt2"} {
		plain, packed := pairOf(t, recipe{config: tiny()[name], seed: 4}.write(t, t.TempDir()), inBlocks)
		want, got := load(t, plain, cpuDevice(t, 2), Options{}), load(t, packed, cpuDevice(t, 2), Options{})
		ids := tokens(11, 37, 9, 14)
		a, _ := gradients(t, want, ids, BackwardOptions{})
		b, _ := gradients(t, got, ids, BackwardOptions{})
		for key, g := range a {
			near(t, name+": "+key, b[key], g, 1e-4*largest(g)+1e-9)
		}
		if len(a) != len(b) || len(a) == 0 {
			t.Errorf("%s: %d gradients, want %d", name, len(b), len(a))
		}
	}
}

// A changed matrix is dense from then on, and the others stay as they are.
func TestPackedMutable(t *testing.T) {
	plain, packed := pairOf(t, recipe{config: tiny()["llama"], seed: 4}.write(t, t.TempDir()), inBlocks)
	want, got := load(t, plain, cpuDevice(t, 2), Options{}), load(t, packed, cpuDevice(t, 2), Options{})
	ids := tokens(3, 37, 10)
	o := ForwardOptions{Logits: true}
	before := forward(t, got, ids, o).Loss

	for _, m := range []*Model{want, got} {
		for _, l := range m.Linears(1) {
			w, err := m.MutableParam(l.Name)
			if err != nil {
				t.Fatal(err)
			}

			for i, v := range w.Buf.F32() {
				w.Buf.F32()[i] = v + 0.01
			}

			w.Buf.Changed()
		}
	}

	a, b := forward(t, want, ids, o), forward(t, got, ids, o)
	near(t, "logits", values(b.Logits), values(a.Logits), matmulTolerance)
	got.ReleaseBlock(0, true)
	got.ReleaseBlock(1, true)

	// The same pass twice gives the same bits; one without logits may take its loss from the head in another way.
	if after := forward(t, got, ids, o); after.Loss == before || after.Loss != b.Loss {
		t.Errorf("loss %g after releasing, %g before, %g unchanged", after.Loss, b.Loss, before)
	}

	sameModel(t, got, want)
}

// Expanded copies and pages go when a block is released, and streaming holds a block of the packed files at most.
func TestPackedReleases(t *testing.T) {
	if _, err := os.ReadFile("/proc/self/smaps"); err != nil {
		t.Skip("/proc/self/smaps is not there")
	}

	config := maps.Clone(tiny()["llama"])
	config["hidden_size"] = 256
	config["intermediate_size"] = 512
	config["num_hidden_layers"] = 12

	config["head_dim"] = 64
	_, dir := pairOf(t, recipe{config: config, seed: 1}.write(t, t.TempDir()), inBlocks)
	dev := &accountant{Device: cpu.New(cpu.Options{})}
	m := load(t, dir, dev, Options{Stream: true})
	block := m.DataSize() / 12

	peak := int64(0)
	forward(t, m, tokens(1, 37, 16), ForwardOptions{Hooks: &Hooks{BlockOutput: func(int, kernels.Mat) {
		peak = max(peak, mappedResident(t, dir))
	}}})
	if peak == 0 || peak > block*3/2 {
		t.Errorf("%d bytes of the files are resident, a block has %d", peak, block)
	}
	if left := mappedResident(t, dir); left > block/2 {
		t.Errorf("%d bytes stay", left)
	}

	held := func() (n int) {
		for i, b := range dev.live {
			if b.Len > 0 {
				n += dev.size[i]
			}
		}
		return n
	}

	before := held()

	for _, l := range m.Linears(3) {
		if _, err := m.Param(l.Name); err != nil {
			t.Fatal(err)
		}
	}

	if held() == before {
		t.Error("nothing is expanded")
	}

	m.ReleaseBlock(3, false)
	if left := held(); left != before {
		t.Errorf("%d bytes stay expanded", left-before)
	}
}

// Saving is refused before anything is written; the fingerprint is that of the files.
func TestPackedSave(t *testing.T) {
	plain, packed := pairOf(t, recipe{config: tiny()["llama"]}.write(t, t.TempDir()), inBlocks)
	m := load(t, packed, ref.New(), Options{})
	out := filepath.Join(t.TempDir(), "out")
	_, err := m.NewSaver(out, SaveOptions{})
	if !errors.Is(err, ErrSavePacked) || !strings.Contains(err.Error(), packed) ||
		!strings.Contains(failure.Hint(err), "compress convert") {
		t.Errorf("error %v (%s)", err, failure.Hint(err))
	}

	if entries, _ := os.ReadDir(filepath.Dir(out)); len(entries) > 0 {
		t.Errorf("%v is there", entries)
	}

	a, err := m.Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}

	b, err := load(t, plain, ref.New(), Options{}).Fingerprint(ctx)
	if err != nil || a == b {
		t.Errorf("packed %s, plain %s (%v)", a, b, err)
	}
}

// Packed matrices that do not fit together are refused with one line that names file and tensor; row offsets
// may be absent.
func TestBadPacked(t *testing.T) {
	const q = "model.layers.1.self_attn.q_proj"
	base := recipe{config: tiny()["llama"], seed: 3}.write(t, t.TempDir())
	config, dense := readTensors(t, base, inBlocks)
	find := func(all []stored, name string) *stored {
		return &all[slices.IndexFunc(all, func(s stored) bool { return s.info.Name == name })]
	}
	edit := func(part string, f func(s *stored)) func(config map[string]any, all []stored) []stored {
		return func(_ map[string]any, all []stored) []stored {
			f(find(all, q+part))
			return all
		}
	}

	drop := func(part string) func(config map[string]any, all []stored) []stored {
		return func(_ map[string]any, all []stored) []stored {
			return slices.DeleteFunc(all, func(s stored) bool { return s.info.Name == q+part })
		}
	}

	resize := func(n int64) func(s *stored) {
		return func(s *stored) {
			size := s.info.DType.Bits() / 8
			s.info.Shape = []int64{s.info.Shape[0] + n}
			s.data = append(s.data, make([]byte, 8)...)[:s.info.Shape[0]*int64(size)]
		}
	}

	quantised := func(key string, value any) func(config map[string]any, all []stored) []stored {
		return func(config map[string]any, all []stored) []stored {
			c := bitmasks()
			c[key] = value
			config["quantization_config"] = c
			return all
		}
	}

	for name, c := range map[string]struct {
		change func(config map[string]any, all []stored) []stored
		is     error
		says   string // "": loads
	}{
		"no row offsets": {drop(".row_offsets"), nil, ""},
		"no bitmask":     {drop(".bitmask"), ErrPacked, `lacks its tensor "` + q + `.bitmask"`},
		"no shape":       {drop(".shape"), ErrPacked, `lacks its tensor "` + q + `.shape"`},
		"no elements":    {drop(".compressed"), ErrPacked, `lacks its tensor "` + q + `.compressed"`},
		"a bit less": {edit(".bitmask", func(s *stored) {
			clear(
				s.data[:3])
		}), kernels.ErrSparseOffsets, `tensor "` + q + `.bitmask"`},
		"a bit more at end": {
			edit(".bitmask", func(s *stored) { s.data[len(s.data)-1] = 0xff }),
			kernels.ErrSparseCount, `tensor "` + q + `.bitmask"`,
		},
		"trailing element": {edit(".compressed", resize(1)), kernels.ErrSparseCount, "bits are set for"},
		"element missing":  {edit(".compressed", resize(-1)), kernels.ErrSparseCount, "bits are set for"},
		"wrong offset": {
			edit(".row_offsets", func(s *stored) { s.data[8]++ }), kernels.ErrSparseOffsets,
			"offset of row 1",
		},
		"huge offset": {
			edit(".row_offsets", func(s *stored) { s.data[8+6] = 0xff }), kernels.ErrSparseOffsets,
			"offset of row 1",
		},
		"offsets short": {edit(".row_offsets", resize(-1)), ErrPacked, "is not I64 [32]"},
		"rows": {
			edit(".shape", func(s *stored) { s.data[0]++ }), ErrPacked,
			"is not the bitmask of a matrix [33, 24]",
		},
		"columns": {
			edit(".shape", func(s *stored) { s.data[8]-- }), ErrShape,
			"shape [32 23], but config.json gives [32 24]",
		},
		"huge shape": {
			edit(".shape", func(s *stored) { s.data[15] = 0x7f }), ErrPacked,
			"is not the bitmask of a matrix",
		},
		"negative shape": {edit(".shape", func(s *stored) { s.data[7] = 0x80 }), ErrPacked, "a matrix cannot be"},
		"shape of three": {edit(".shape", resize(1)), ErrPacked, "does not hold two I64"},
		"elements as rows": {edit(".compressed", func(s *stored) {
			s.info.Shape = []int64{
				1,
				s.info.Shape[0],
			}
		}), ErrPacked, "elements in 2 dimensions"},
		"element type": {edit(".compressed", func(s *stored) {
			s.info.DType, s.info.Shape = safetensors.U8, []int64{int64(len(s.data))}
		}), ErrDType, "U8"},
		"mask type": {
			edit(".bitmask", func(s *stored) { s.info.DType = safetensors.I8 }), ErrPacked,
			"is not the bitmask",
		},
		"padding": {func(_ map[string]any, all []stored) []stored {
			find(all, "model.layers.1.mlp.down_proj.bitmask").data[2] |= 0x80
			return all
		}, kernels.ErrSparsePadding, "row 0 of 20 columns"},
		"both": {
			func(_ map[string]any, all []stored) []stored { return append(all, *find(dense, q+".weight")) }, ErrPacked,
			`"` + q + `.weight" is there as well`,
		},
		"unknown module": {func(_ map[string]any, all []stored) []stored {
			s := *find(dense, q+".weight")
			s.info.Name = "other.weight"
			return append(all, pack(s)...)
		}, ErrExtraTensor, "these 1: other.weight"},
		"not announced": {func(c map[string]any, all []stored) []stored {
			delete(c, "quantization_config")
			return all
		}, ErrMissingTensor, "q_proj.weight"},
		"quantised as well": {quantised("config_groups", map[string]any{"group_0": 1}), nil, "quantization_config"},
		"other method":      {quantised("quant_method", "gptq"), nil, "quantization_config"},
		"other format": {
			quantised("sparsity_config", map[string]any{"format": "sparse-24-bitmask"}), nil,
			"quantization_config",
		},
		"nonsense": {quantised("sparsity_config", 3), nil, "quantization_config"},
	} {
		t.Run(name, func(t *testing.T) {
			some := make([]stored, len(dense))
			for i, s := range dense {
				some[i] = stored{s.info, bytes.Clone(s.data)}
			}

			changed, all := packSome(config, some, inBlocks)
			all = c.change(changed, all)
			dir := writeTensors(t, changed, all)

			m, err := Load(ctx, dir, ref.New(), Options{})
			if c.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()

				near(t, "logits", values(forward(t, m, tokens(1, 37, 6), ForwardOptions{Logits: true}).Logits),
					values(forward(t, load(t, writeTensors(t, config, dense), ref.New(), Options{}), tokens(1, 37, 6),
						ForwardOptions{Logits: true}).Logits),
					matmulTolerance)
				return
			}

			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A tied model with a packed token table says why it is not taken.
func TestPackedTiedHead(t *testing.T) {
	config := maps.Clone(tiny()["llama"])
	config["tie_word_embeddings"] = true
	dir := recipe{config: config}.write(t, t.TempDir())

	packedTable := func(name string) bool { return name == "model.embed_tokens.weight" }
	c, all := readTensors(t, dir, packedTable)
	head := all[slices.IndexFunc(all, func(s stored) bool { return packedTable(s.info.Name) })]
	c, all = packSome(c, all, packedTable)
	forward(t, load(t, writeTensors(t, c, all), cpuDevice(t, 1), Options{}), tokens(1, 37, 6), ForwardOptions{})

	head.info.Name = "lm_head.weight"
	_, err := Load(ctx, writeTensors(t, c, append(all, head)), ref.New(), Options{})
	if !errors.Is(err, ErrExtraTensor) || !strings.Contains(err.Error(), "lm_head.weight") {
		t.Errorf("error %v", err)
	}
}
