package covariance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

// Cached is [Collect] with a folder that keeps what was computed, by the model's fingerprint, the data's hash
// and the layer. A file that is damaged is computed anew.
func Cached(ctx context.Context, m *lm.Model, docs [][]int32, blocks []int, folder, model string,
	progress func(done, total int),
) (*Statistics, error) {
	s := &Statistics{Model: model, Data: corpus.HashIDs(docs), Moments: map[int]linalg.Matrix{}}
	for _, d := range docs {
		s.Tokens += len(d)
	}

	var missing []int
	for _, b := range blocks {
		l, err := site.Linear(m, b, arch.Down)
		if err != nil {
			return nil, err
		}

		c, err := loadMoments(filepath.Join(folder, s.key(b)), l.In)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, site.ErrStatistics) {
			missing = append(missing, b)
			continue
		}
		if err != nil {
			return nil, err
		}

		s.Moments[b] = c
	}

	if len(missing) == 0 {
		return s, nil
	}

	fresh, err := Collect(ctx, m, docs, missing, progress)
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, err
	}

	for b, c := range fresh.Moments {
		s.Moments[b] = c
		if err := saveMoments(filepath.Join(folder, s.key(b)), c); err != nil {
			return nil, err
		}
	}

	return s, nil
}

// loadMoments reads the lower triangle of a symmetric matrix and its hash.
func loadMoments(path string, n int) (linalg.Matrix, error) {
	info, err := os.Stat(path)
	if err != nil {
		return linalg.Matrix{}, err
	}

	if info.Size() != int64(n)*int64(n+1)/2*8+64 {
		return linalg.Matrix{}, fmt.Errorf("%w: %s: size", site.ErrStatistics, path)
	}

	data, err := safefile.ReadFile(path, info.Size())
	if err != nil {
		return linalg.Matrix{}, err
	}

	body := data[:len(data)-64]
	if stage.Sum(body) != string(data[len(body):]) {
		return linalg.Matrix{}, fmt.Errorf("%w: %s: hash", site.ErrStatistics, path)
	}

	m := linalg.New(n, n)
	for i, at := 0, 0; i < n; i++ {
		for j := range i + 1 {
			v := math.Float64frombits(binary.LittleEndian.Uint64(body[at:]))
			m.Set(i, j, v)
			m.Set(j, i, v)
			at += 8
		}
	}

	return m, nil
}

// saveMoments writes what loadMoments reads, under its name only when it is complete.
func saveMoments(path string, m linalg.Matrix) error {
	data := make([]byte, 0, m.Rows*(m.Rows+1)/2*8+64)
	for i := range m.Rows {
		for j := range i + 1 {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(m.At(i, j)))
		}
	}

	data = append(data, stage.Sum(data)...)
	return safefile.WriteFile(path, data, 0o666)
}
