package distil

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/safetensors"
)

// ErrDamaged: what a cache holds is not what was written.
var ErrDamaged = failure.New("the teacher's cache is damaged", "remove it: the teacher says it again")

// ErrCache: a file is no cache of a teacher, or of something else than is asked for.
var ErrCache = errors.New("not the teacher's cache that is asked for")

// A cache is a .safetensors file of what a teacher predicts for every token of some data that counts, in the order of
// the data, in parts of whole sequences that make up at most partTokens tokens (or one longer sequence): ids.N I32 [n,
// top], the likeliest tokens of each row, likeliest first, logprobs.N BF16 [n, top], log p at the temperature, and
// rest.N F32 [n], log of the probability of all others. BF16 has 8 bits: log p is next to 0 where p is large, so that
// large probabilities are the exact ones; logits themselves would be off by 6 % of p at 20. The last tensor has the
// CRC-32C of each part. 6·top + 4 bytes a token: 388 with 64.
const (
	partTokens = 4096
	cacheKey   = "teacher"
	cacheForm  = 1
)

// Identity says what a cache is of.
type Identity struct {
	Form        int     `json:"form"`
	Teacher     string  `json:"fingerprint"` // of the teacher
	Path        string  `json:"path"`        // where it was
	Vocab       int     `json:"vocabulary"`  // tokens that are predicted
	Data        string  `json:"data"`        // hash of the sequences in order
	Labels      string  `json:"labels"`
	Rows        int64   `json:"rows"`
	Temperature float64 `json:"temperature"`
	Top         int     `json:"top"`
}

// identify says what a cache of a teacher on data is of.
func identify(data batches.Data) Identity {
	id := Identity{Form: cacheForm, Data: corpus.HashIDs(data.IDs), Labels: corpus.HashIDs(data.Labels)}
	for _, p := range partsOf(data) {
		id.Rows += int64(p.rows)
	}
	return id
}

// part is some sequences of the data.
type part struct {
	seqs []int
	rows int // that count
}

// partsOf divides data into parts. Sequences of which nothing counts are in none.
func partsOf(data batches.Data) (list []part) {
	tokens := 0
	for i := range data.IDs {
		n := data.Counted(i)
		if n == 0 {
			continue
		}
		if len(list) == 0 || tokens+len(data.IDs[i]) > partTokens {
			list, tokens = append(list, part{}), 0
		}
		p := &list[len(list)-1]
		p.seqs, p.rows = append(p.seqs, i), p.rows+n
		tokens += len(data.IDs[i])
	}
	return list
}

// batch is what a part sends through the teacher.
func (p part) batch(data batches.Data) batches.Batch {
	b := batches.Batch{}
	for _, i := range p.seqs {
		b.IDs, b.Labels = append(b.IDs, data.IDs[i]), append(b.Labels, data.LabelsOf(i))
	}
	return b
}

// names are those of a part's tensors.
func names(k int) [3]string {
	n := strconv.Itoa(k)
	return [3]string{"ids." + n, "logprobs." + n, "rest." + n}
}

const sumsName = "crc32c"

// layout lists the tensors of a cache.
func layout(parts []part, top int) []safetensors.Info {
	list := make([]safetensors.Info, 0, 3*len(parts)+1)
	for k, p := range parts {
		n, name := int64(p.rows), names(k)
		list = append(list,
			safetensors.Info{Name: name[0], DType: safetensors.I32, Shape: []int64{n, int64(top)}},
			safetensors.Info{Name: name[1], DType: safetensors.BF16, Shape: []int64{n, int64(top)}},
			safetensors.Info{Name: name[2], DType: safetensors.F32, Shape: []int64{n}})
	}
	return append(list, safetensors.Info{Name: sumsName, DType: safetensors.U32, Shape: []int64{int64(len(parts))}})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func updateSum(sum uint32, data []byte) uint32 { return crc32.Update(sum, castagnoli, data) }

// sumOf is the checksum of a part's tensors.
func sumOf(f *safetensors.File, k int) (sum uint32, err error) {
	for _, name := range names(k) {
		if err := f.View(name, func(data []byte) error {
			sum = updateSum(sum, data)
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// Cache is a teacher that has left a file.
type Cache struct {
	Identity
	file  *safetensors.File
	place []place // of each sequence
	rows  []place // of the batch, row by row
}

// place is where a row, or the first row of a sequence, is.
type place struct{ part, row int }

// OpenCache opens a finished cache and checks its sums; [Cache.Fit] must follow. The error wraps [ErrCache] for files
// that are none, [ErrDamaged] and those of package safetensors.
func OpenCache(path string) (*Cache, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	c := &Cache{file: f}
	if err := c.check(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return c, nil
}

// check compares a file with what it says of itself.
func (c *Cache) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", c.file.Path(), ErrCache, fmt.Sprintf(format, args...))
	}

	text, ok := c.file.Metadata()[cacheKey]
	if !ok {
		return bad("its metadata has no %q", cacheKey)
	}
	if err := json.Unmarshal([]byte(text), &c.Identity); err != nil {
		return bad("metadata: %v", err)
	}
	switch {
	case c.Form != cacheForm:
		return bad("form %d; known: %d", c.Form, cacheForm)
	case c.Top < 1 || c.Vocab < c.Top || !(c.Temperature > 0) || math.IsInf(c.Temperature, 0):
		return bad("%d of %d tokens at temperature %g", c.Top, c.Vocab, c.Temperature)
	}

	sums, ok := c.file.Info(sumsName)
	if !ok || sums.DType != safetensors.U32 || len(sums.Shape) != 1 {
		return bad("tensor %q is missing or of another kind", sumsName)
	}
	want, err := c.file.Bytes(sumsName)
	if err != nil {
		return err
	}

	rows := int64(0)
	for k := range int(sums.Shape[0]) {
		n, err := c.checkPart(k)
		if err != nil {
			return err
		}
		rows += n

		got, err := sumOf(c.file, k)
		if err != nil {
			return err
		}
		if got != binary.LittleEndian.Uint32(want[4*k:]) {
			return fmt.Errorf("%s: %w: the checksum of part %d is another one", c.file.Path(), ErrDamaged, k)
		}
	}
	if rows != c.Rows || len(c.file.Names()) != 3*int(sums.Shape[0])+1 {
		return bad("%d rows in %d tensors, %d are announced", rows, len(c.file.Names()), c.Rows)
	}
	return nil
}

// checkPart compares the tensors of a part with each other, and gives its rows.
func (c *Cache) checkPart(k int) (rows int64, err error) {
	name := names(k)
	top := int64(c.Top)
	for i, t := range []safetensors.DType{safetensors.I32, safetensors.BF16, safetensors.F32} {
		info, ok := c.file.Info(name[i])
		if ok && i == 0 && len(info.Shape) == 2 {
			rows = info.Shape[0]
		}
		shape := []int64{rows, top}[:2-i/2]
		if !ok || info.DType != t || fmt.Sprint(info.Shape) != fmt.Sprint(shape) {
			return 0, fmt.Errorf("%s: %w: tensor %q is missing or of another kind", c.file.Path(), ErrCache, name[i])
		}
	}
	return rows, nil
}

// Fit finds the sequences of data in the cache, and refuses one of other data or another vocabulary.
func (c *Cache) Fit(data batches.Data, vocab int) error {
	is := identify(data)
	path := c.file.Path()
	switch {
	case is.Data != c.Data:
		return fmt.Errorf("%s: %w: it is of other data: sequences with the hash %.12s…, here %.12s…", path, ErrCache,
			c.Data, is.Data)
	case is.Labels != c.Labels || is.Rows != c.Rows:
		return fmt.Errorf("%s: %w: it is of the same sequences with other labels: %d tokens that count, here %d", path,
			ErrCache, c.Rows, is.Rows)
	case c.Vocab > vocab:
		return fmt.Errorf("%s: %w: the teacher has %d tokens in its vocabulary, the student %d", path, ErrCache,
			c.Vocab, vocab)
	}

	c.place = make([]place, len(data.IDs))
	for k, p := range partsOf(data) {
		if info, ok := c.file.Info(names(k)[0]); !ok || info.Shape[0] != int64(p.rows) {
			return fmt.Errorf("%s: %w: part %d has other rows than the data", path, ErrCache, k)
		}
		row := 0
		for _, i := range p.seqs {
			c.place[i] = place{k, row}
			row += data.Counted(i)
		}
	}
	return nil
}

// Size is the bytes of the file.
func (c *Cache) Size() int64 { return c.file.Size() }

// Close closes the file.
func (c *Cache) Close() error { return c.file.Close() }

// Begin implements [Source].
func (c *Cache) Begin(_ context.Context, b batches.Batch) error {
	c.rows = c.rows[:0]
	for i, seq := range b.Seqs {
		at := c.place[seq]
		for t := range max(len(b.IDs[i])-1, 0) {
			if b.Labels[i][t+1] >= 0 {
				c.rows = append(c.rows, at)
				at.row++
			}
		}
	}
	return nil
}

// Targets implements [Source].
func (c *Cache) Targets(ctx context.Context, lo, hi int) (*Targets, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	n, k := hi-lo, c.Top
	t := &Targets{Top: k, IDs: make([]int32, n*k), LogP: make([]float64, n*k), Rest: make([]float64, n)}
	for i, at := range c.rows[lo:hi] {
		if err := c.row(at, t.IDs[i*k:][:k], t.LogP[i*k:][:k], &t.Rest[i]); err != nil {
			return nil, fmt.Errorf("%s: part %d, row %d: %w", c.file.Path(), at.part, at.row, err)
		}
	}
	return t, nil
}

// row reads a row.
func (c *Cache) row(at place, ids []int32, logP []float64, rest *float64) error {
	name := names(at.part)
	var raw [3][]byte
	for i, size := range [...]int{4 * c.Top, 2 * c.Top, 4} {
		all, err := c.file.Bytes(name[i])
		if err != nil {
			return err
		}
		raw[i] = all[at.row*size:][:size]
	}

	sum := 0.0
	for j := range ids {
		ids[j] = int32(binary.LittleEndian.Uint32(raw[0][4*j:]))
		logP[j] = float64(kernels.FromBF16(binary.LittleEndian.Uint16(raw[1][2*j:])))
		if ids[j] < 0 || int(ids[j]) >= c.Vocab || !(logP[j] <= 0) {
			return fmt.Errorf("%w: token %d of %d with log p %g", ErrCache, ids[j], c.Vocab, logP[j])
		}
		sum += math.Exp(logP[j])
	}

	*rest = math.Exp(float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[2]))))
	left := 1 - *rest
	if !(left >= 0) || !(sum > 0) {
		return fmt.Errorf("%w: probabilities of %g, and of %g for all others", ErrCache, sum, *rest)
	}

	// Rounded probabilities do not add up to what the rest leaves.
	shift := math.Log(left / sum)
	for j := range logP {
		logP[j] += shift
	}
	return nil
}
