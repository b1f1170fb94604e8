package distil

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/lora/internal/batches"
)

// Settings say what of a teacher is learned.
type Settings struct {
	Temperature float64 // τ, above 0
	Top         int     // tokens of each row that count by themselves; 0: all
	CE          float64 // α, the weight of the cross-entropy of the labels; 0: none
}

// rowsOf counts the labels of a batch that count, and gives the rows of its hidden states that predict them, in order.
func rowsOf(b batches.Batch) (rows []int, labels []int32) {
	start := 0
	for i, ids := range b.IDs {
		for t := range max(len(ids)-1, 0) {
			if y := b.Labels[i][t+1]; y >= 0 {
				rows, labels = append(rows, start+t), append(labels, y)
			}
		}
		start += len(ids)
	}
	return rows, labels
}

// checkFinite refuses numbers of a teacher that are none.
func checkFinite(who string, v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("%s: the teacher's logits are not finite", who)
	}
	return nil
}
