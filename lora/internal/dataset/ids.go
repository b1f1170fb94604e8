package dataset

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// readIDs reads input_ids and, if present, labels, of the same shape [n, t] or [steps, batch, t], as they are.
func readIDs(path string, o Options) (corpus.Windows, Counts, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return corpus.Windows{}, Counts{}, err
	}
	defer f.Close()

	ids, shape, err := rowsOf(f, "input_ids", o.Vocab, false)
	if err != nil {
		return corpus.Windows{}, Counts{}, fmt.Errorf("%s: %w", path, err)
	}

	w := corpus.New(ids, path)
	w.Mode, w.Docs = corpus.IDs, len(ids)
	w.Tokens = int64(len(ids)) * int64(w.SeqLen)

	if _, ok := f.Info("labels"); ok {
		labels, other, err := rowsOf(f, "labels", o.Vocab, true)
		if err == nil && !slices.Equal(shape, other) {
			err = fmt.Errorf("%w: labels have shape %v, input_ids %v", corpus.ErrIDs, other, shape)
		}
		if err != nil {
			return corpus.Windows{}, Counts{}, fmt.Errorf("%s: %w", path, err)
		}
		w.Labels = labels
	}

	return w, Counts{Records: len(ids)}, nil
}

// BatchOf gives the batch of a file of token ids [steps, batch, t], 0 for other shapes.
func BatchOf(path string) (int, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()

	info, _ := f.Info("input_ids")
	if len(info.Shape) != 3 || info.Shape[1] > math.MaxInt32 {
		return 0, nil
	}

	return int(info.Shape[1]), nil
}

// rowsOf reads the rows of a tensor of token ids.
func rowsOf(f *safetensors.File, name string, vocab int, masked bool) ([][]int32, []int64, error) {
	info, ok := f.Info(name)
	if !ok {
		return nil, nil, fmt.Errorf("%w: there is no tensor %s", corpus.ErrIDs, name)
	}

	if info.DType != safetensors.I32 && info.DType != safetensors.I64 || len(info.Shape) != 2 && len(info.Shape) != 3 {
		return nil, nil, fmt.Errorf("%w: %s is %s %v, not I32 or I64 [n, t] or [steps, batch, t]", corpus.ErrIDs, name,
			info.DType, info.Shape)
	}

	width := int(info.Shape[len(info.Shape)-1])
	if width < 1 || info.Size == 0 {
		return nil, nil, fmt.Errorf("%w: %s", corpus.ErrEmpty, name)
	}

	size := info.DType.Bits() / 8
	rows := make([][]int32, 0, int(info.Size)/size/width)
	err := f.View(name, func(data []byte) error {
		for len(data) > 0 {
			row := make([]int32, width)
			for i := range row {
				v := int64(int32(binary.LittleEndian.Uint32(data)))
				if size == 8 {
					v = int64(binary.LittleEndian.Uint64(data))
				}

				if !(masked && v == corpus.Ignore) && (v < 0 || v >= int64(vocab)) {
					return fmt.Errorf("%w: %s: %d in row %d, position %d; the model has %d tokens",
						corpus.ErrVocabulary, name, v, len(rows), i, vocab)
				}

				row[i], data = int32(v), data[size:]
			}

			rows = append(rows, row)
		}

		return nil
	})

	return rows, info.Shape, err
}
