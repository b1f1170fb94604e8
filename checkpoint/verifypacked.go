package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"math/bits"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
)

// verifyPacked compares bitmasks, row offsets and values of packed matrices, and the bitmasks with the pattern
// that the configuration promises. Row offsets that only some matrices have and zeros among the values do no
// harm; they are remarks.
func (r *Inspection) verifyPacked(ctx context.Context, src *weights.Source, parts map[string]*packed,
	structure string,
) error {
	with := 0
	without := 0
	zeros := int64(0)

	last := ""
	for _, name := range src.Names() {
		p := parts[name]
		if p == nil || name != p.module+partBitmask {
			continue
		}
		if err := p.check(ctx, src); err != nil {
			return err
		}

		if structure == "2:4" {
			if err := p.checkPattern(ctx, src); err != nil {
				return err
			}
		}

		with++
		if !p.offsets {
			with, without, last = with-1, without+1, p.module
		}
	}

	for i := range r.List {
		if t := &r.List[i]; t.Packed && t.Zeros != nil {
			zeros += *t.Zeros - t.left
		}
	}

	if with > 0 && without > 0 {
		r.Remarks = append(r.Remarks, fmt.Sprintf("%d of %d packed matrices have no row offsets, such as %q; the "+
			"bitmasks determine them", without, with+without, last))
	}

	if zeros > 0 {
		r.Remarks = append(r.Remarks, fmt.Sprintf("zeros stored among the values of packed matrices: %d", zeros))
	}

	return nil
}

// checkPattern reports whether no four columns that lie together have more than two values.
func (p *packed) checkPattern(ctx context.Context, src *weights.Source) error {
	width := (p.cols + 7) / 8
	rows := max(1, pieceBytes/width)
	mask := make([]byte, min(rows, p.rows)*width)
	for row := int64(0); row < p.rows; row += rows {
		if err := ctx.Err(); err != nil {
			return err
		}

		n := min(rows, p.rows-row) * width
		if _, err := src.ReadAt(p.module+partBitmask, mask[:n], row*width); err != nil {
			return err
		}

		for i, m := range mask[:n] {
			if low, high := bits.OnesCount8(m&15), bits.OnesCount8(m>>4); low > 2 || high > 2 {
				at, col := int64(i), int64(0)
				if low <= 2 {
					col = 4
				}
				return p.fault(src, partBitmask, "row %d has more than 2 values in the 4 columns from %d on, where "+
					"sparsity_structure in config.json says 2:4", row+at/width, at%width*8+col)
			}
		}
	}

	return nil
}

// structureOf is the pattern that a configuration promises of packed matrices, empty if none.
func structureOf(config *orderedjson.Object) string {
	var q struct {
		Sparsity struct {
			Structure string `json:"sparsity_structure"`
		} `json:"sparsity_config"`
	}
	if raw := config.Get("quantization_config"); raw == nil || json.Unmarshal(raw, &q) != nil {
		return ""
	}
	return q.Sparsity.Structure
}
