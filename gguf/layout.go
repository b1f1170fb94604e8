package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/tensorfile"
)

// maxName is the longest name of a tensor that ggml takes.
const maxName = 63

// plan lays out a file: the tensors in the given order, each at a multiple of the alignment that the metadata name.
func plan(tensors []Info, metadata Metadata) (*tensorfile.Layout, error) {
	alignment, err := checkMetadata(metadata)
	if err != nil {
		return nil, err
	}

	head := []byte(magic)
	head = binary.LittleEndian.AppendUint32(head, version)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(tensors)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(metadata)))
	for _, e := range metadata {
		head = Of(e.Key).append(head)
		head = binary.LittleEndian.AppendUint32(head, uint32(e.Value.kind))
		head = e.Value.append(head)
	}

	l := &tensorfile.Layout{Regions: make([]tensorfile.Region, len(tensors))}
	seen := make(map[string]bool, len(tensors))
	end := int64(0)
	for i, t := range tensors {
		size, err := checkTensor(t, seen)
		if err != nil {
			return nil, locate(err, "", t.Name)
		}

		offset := align(end, alignment)
		if size > math.MaxInt64/2-offset {
			return nil, locate(fault(ErrTooLarge, -1, "the data leaves the range of file sizes"), "", t.Name)
		}
		l.Regions[i] = tensorfile.Region{Name: t.Name, Offset: offset, Size: size}
		head = appendTensor(head, t, offset)
		end = offset + size
	}

	l.Head = head // the padding behind it is zeros, like that between tensors
	start := align(int64(len(head)), alignment)
	for i := range l.Regions {
		l.Regions[i].Offset += start
	}

	// gguf-py and llama.cpp pad the last tensor too.
	l.Size = start + align(end, alignment)
	return l, nil
}

// checkMetadata refuses what a file cannot hold or a reader would refuse, and returns the alignment.
func checkMetadata(metadata Metadata) (int64, error) {
	seen := make(map[string]bool, len(metadata))
	for _, e := range metadata {
		switch {
		case e.Key == "" || len(e.Key) > maxKey || !utf8.ValidString(e.Key):
			return 0, fault(ErrKey, -1, "%q: a key is text of 1 to %d bytes", clip(e.Key), maxKey)
		case seen[e.Key]:
			return 0, keyed(fault(ErrDuplicateKey, -1, "given twice"), e.Key)
		}
		seen[e.Key] = true
	}
	return alignmentOf(metadata)
}

// checkTensor refuses names and dimensions that ggml does not take, and returns the size.
func checkTensor(t Info, seen map[string]bool) (int64, error) {
	switch {
	case t.Name == "" || len(t.Name) > maxName || !utf8.ValidString(t.Name):
		return 0, fault(ErrTensorName, -1, "%q: a name is text of 1 to %d bytes", clip(t.Name), maxName)
	case seen[t.Name]:
		return 0, fault(ErrDuplicate, -1, "given twice")
	case len(t.Shape) > maxDims:
		return 0, fault(ErrDimensions, -1, "%s; at most %d", clip(fmt.Sprint(t.Shape)), maxDims)
	}
	seen[t.Name] = true
	return t.Type.ByteSize(t.Shape)
}

func appendTensor(b []byte, t Info, offset int64) []byte {
	b = Of(t.Name).append(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
	for _, n := range slices.Backward(t.Shape) {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
	return binary.LittleEndian.AppendUint64(b, uint64(offset))
}
