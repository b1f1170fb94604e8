package stream

import (
	"fmt"
	"sort"

	"github.com/modelcompress/compress/merge/internal/output"
)

// Budget is the memory that a run takes at most, in bytes. The error wraps [ErrMemory] if more is needed than
// the options allow.
func Budget(groups []Group, o Options) (int64, error) {
	_, buffers, err := fit(groups, o)
	_, most := largest(groups)
	return buffers + most, err
}

// fit lowers the number of workers until their buffers, which it gives the size of, leave room for the largest
// group. The error wraps [ErrMemory] where one worker is too many.
func fit(groups []Group, o Options) (Options, int64, error) {
	name, most := largest(groups)
	over := sort.Search(o.Threads, func(w int) bool { return reserve(groups, w+1)+most > o.Memory })
	if over == 0 && o.Threads > 0 {
		need := reserve(groups, 1) + most
		return o, 0, fmt.Errorf("tensor %q needs %d KiB with one thread, %d KiB are allowed: %w", name, need>>10+1,
			o.Memory>>10, ErrMemory)
	}
	o.Threads = over
	return o, reserve(groups, o.Threads), nil
}

// largest is the group that needs the most memory, by the name of its first tensor.
func largest(groups []Group) (name string, bytes int64) {
	for _, g := range groups {
		if n := need(g); name == "" || n > bytes {
			name, bytes = g.Items[0].Tensor.Name, n
		}
	}
	return name, bytes
}

// reserve is the memory of buffers: those of so many workers, and of the writers.
func reserve(groups []Group, workers int) (bytes int64) {
	for _, g := range groups {
		for _, it := range g.Items {
			block, segment := lengths(g.Program, it)
			block, segment = min(block, it.Tensor.N), min(segment, it.Tensor.N)
			buffers := int64(len(it.X)+8) * block * 4 * int64(workers)
			if it.Raw == nil {
				buffers += (segment*width(it.DType) + output.Slack) * int64(2*workers+writers)
			}

			bytes = max(bytes, buffers)
		}
	}

	return bytes
}
