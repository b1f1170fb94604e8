package output

import "github.com/modelcompress/compress/internal/system"

// hugeFrom is how much memory is worth pages of its own.
const hugeFrom = 4 << 20

// Memory gives n buffers of size bytes each for [Buffer] and [Reader.Read], in huge pages where the system has
// them: a device then gets few addresses for many bytes. free gives them back, once nothing uses them.
func Memory(n int, size int64) (buffers [][]byte, free func()) {
	total := int64(n) * size
	buffers = make([][]byte, n)

	var all []byte
	free = func() {}
	if total >= hugeFrom {
		if m, err := system.Anonymous(int(total)); err == nil {
			all = m
			huge(m)
			free = func() { _ = system.Unmap(m) } // fails for what is not mapped alone
		}
	}

	if all == nil {
		all = make([]byte, total)
	}

	for i := range buffers {
		at := int64(i) * size
		buffers[i] = all[at : at+size : at+size]
	}

	return buffers, free
}
