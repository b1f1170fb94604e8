package cli

import (
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/memory"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// fits tells whether the activations of calibration windows, which are held between two blocks, fit into memory.
func fits(m *lm.Model, calib corpus.Windows) error {
	tokens := int64(0)
	for _, row := range calib.IDs {
		tokens += int64(len(row))
	}

	need := tokens * int64(m.Config().Hidden) * 4
	info := m.Device().Info()
	free := info.Free
	if room, limited := memory.Room(); limited && info.Host && (free == 0 || room < free) {
		free = room
	}

	if free > 0 && need > free {
		return fmt.Errorf("%s: the activations of %d windows, %d tokens in all, take %s, and %s of memory are free "+
			"(HINT: fewer --samples, or a smaller --seqlen)",
			calib.Source, len(calib.IDs), tokens, Size(need), Size(free))
	}

	return nil
}
