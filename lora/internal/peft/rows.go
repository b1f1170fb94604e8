package peft

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// addRows reads the trained rows of a table.
func (r *reader) addRows(key, path string) error {
	i, ok := r.byPath[path]
	if !ok || !r.isTable(path) {
		return fmt.Errorf("tensor %.200q: %w: it has no token table %.200q", key, adapter.ErrBase, path)
	}

	m := r.modules[i]
	ids, err := r.tokenIDs(key, m)
	if err != nil {
		return err
	}

	// A table is [vocab, width]; as the head's matrix it is the other way round in the module's own terms.
	width, vocab := m.Out, m.In
	if !m.Table {
		width, vocab = m.In, m.Out
	}

	info, _ := r.file.Info(key)
	if len(info.Shape) != 2 || info.Shape[0] != int64(len(ids)) || info.Shape[1] != int64(width) {
		return fmt.Errorf("tensor %.200q: %w: shape %v, the configuration and the base ask for [%d %d]", key,
			adapter.ErrBase, info.Shape, len(ids), width)
	}

	rows := &adapter.Rows{Module: m}
	for _, id := range ids {
		if id < 0 || id >= int64(vocab) {
			return fmt.Errorf("%w: trainable_token_indices: token %d of %d", adapter.ErrBase, id, vocab)
		}
		rows.IDs = append(rows.IDs, int32(id))
	}

	if rows.Value, err = r.matrix(key, len(ids), width); err != nil {
		return err
	}

	r.out.Rows = append(r.out.Rows, rows)
	return nil
}

// tokenIDs finds the rows that the configuration names for a table: a list is about the token table, a map
// about modules by the ends of their paths.
func (r *reader) tokenIDs(key string, m adapter.Module) ([]int64, error) {
	var list []int64
	if json.Unmarshal(r.tokens, &list) == nil {
		if m.Table && len(list) <= math.MaxInt32 {
			return list, nil
		}
		return nil, fmt.Errorf("tensor %.200q: %w: trainable_token_indices names rows of the token table only", key,
			adapter.ErrFile)
	}

	if r.tokens == nil {
		return nil, fmt.Errorf("tensor %.200q: %w: the configuration has no trainable_token_indices", key,
			adapter.ErrFile)
	}

	entries, err := orderedjson.Parse(r.tokens)
	if err != nil {
		return nil, bad("trainable_token_indices", "neither a list of tokens nor a map to such lists")
	}

	for path, tokens := range entries.All() {
		// As PEFT matches: the whole path or its end, at a dot.
		if m.Path != path && !strings.HasSuffix(m.Path, "."+path) {
			continue
		}
		if err := json.Unmarshal(tokens, &list); err != nil {
			return nil, bad("trainable_token_indices", "%.60q: not a list of tokens", path)
		}

		return list, nil
	}

	return nil, fmt.Errorf("tensor %.200q: %w: trainable_token_indices does not name %s", key, adapter.ErrFile, m.Path)
}
