// Package safetensors opens, checks, memory-maps and stream-writes files of the safetensors format and folders of
// several such files (shards) with an index, on Unix systems.
//
// # Use
//
//	f, err := safetensors.OpenDir("model") // or Open for a single file
//	defer f.Close()
//	for _, name := range f.Names() {
//		info, _ := f.Info(name)
//		view, err := f.Bytes(name) // no copy: good until Close
//	}
//
// # The format
//
// A file is an 8-byte little-endian length N, a header of N bytes of JSON in UTF-8, and the data of the tensors, one
// after the other without gaps:
//
//	{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}
//
// Values are little-endian, row-major and packed. A shape of [] is a scalar, and a tensor with a zero in its shape
// holds no bytes. Elements smaller than a byte (F4, F6) are packed too, so their count must fill whole bytes; shapes
// count elements.
//
// # Reading
//
// Open checks everything the header claims against the size of the file before it maps it, and refuses what the
// format forbids, each rule with an error of its own (ErrOverlap, ErrHole, ErrTruncated, …; errors.Is finds them,
// errors.As with *Error finds file, tensor and offset). Stricter than some readers, as the format's text asks:
// duplicate keys at any level and anything before the opening brace are refused. Looser, as the reference
// implementation is: unknown fields in a tensor's entry are skipped, and a null __metadata__ counts as none.
//
// Bytes gives a view into the mapping without a copy, ReadAt copies through pread, and Release gives the memory of a
// view back, so that a file larger than memory can be streamed through either. OpenDir reads a folder in the Hugging
// Face layout through the same methods; Source is what both have in common.
//
// # A file that changes while it is read
//
// Opened files must stay as they are: replacing a file by rename is fine, since the mapping keeps the old one, but
// shortening it in place takes pages from under the views. Reading such a page raises SIGBUS, which ends a Go
// program. View runs a function over a view and turns that fault into an error wrapping ErrTruncated; ReadAt meets a
// short read and says the same. Other processes changing bytes within the file go unnoticed.
//
// # Writing
//
// Create lays out all tensors first, writes the header and reserves the disk space, so a full disk shows before the
// work rather than after it. Tensors are then written whole or in parts, in any order, from any number of goroutines;
// the bytes are the same in every case. The file is called name.partial until Finish has seen every byte written,
// flushed it and renamed it. CreateDir does the same over several shards and writes the index last.
//
// A writer survives kill -9: Sync makes what was written durable, the caller notes the names in a journal of its own,
// and Reopen (or ReopenDir) continues after checking that the layout is the same; MarkDone tells it which tensors
// need not be written again.
//
// # Alignment
//
// The header is padded with spaces so that the data starts at a multiple of 8 bytes. The format has no gaps, so a
// tensor is aligned to its element only if the sizes before it say so. Files of one dtype always are. For mixed ones
// OrderAligned (larger elements first, otherwise the caller's order) and OrderHF (the reference implementation's
// order) align everything; OrderGiven promises nothing. Readers must not rely on alignment: Info.Aligned tells.
package safetensors
