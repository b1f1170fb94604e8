package weights

import (
	"errors"
	"io"
	"slices"
	"unsafe"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/safetensors"
)

// exportLimit is the most bytes of a file beside the weights that goes into a GGUF file.
const exportLimit = 1 << 28

// Export plans the GGUF file that the model can be written as; the errors are those of [ggufmodel.NewExport]. The
// plan's Write takes [Source.RowReader], or rows of another origin:
//
//	plan, err := src.Export(ggufmodel.ExportOptions{FileType: 1})
//	err = plan.Write(ctx, "model.gguf", ggufmodel.WriteOptions{Read: src.RowReader(plan)})
func (s *Source) Export(o ggufmodel.ExportOptions) (*ggufmodel.Export, error) {
	files, err := OpenFiles(s.path)
	if err != nil {
		return nil, err
	}
	defer files.Close()

	return ggufmodel.NewExport(ggufmodel.Checkpoint{
		Path: s.path, Tensors: shapes{s},
		ReadFile: func(name string) ([]byte, error) { return files.Read(name, exportLimit) },
	}, o)
}

// shapes is the tensors as a plan asks for them.
type shapes struct{ *Source }

// Shape gives the dimensions of a tensor.
func (s shapes) Shape(name string) ([]int64, bool) {
	info, ok := s.Info(name)
	return info.Shape, ok
}

// RowReader reads rows of the parameters of a plan. It may be called from several goroutines at once.
func (s *Source) RowReader(e *ggufmodel.Export) ggufmodel.RowReader {
	return func(name string, dst []float32, first, n int) error {
		if n == 0 || len(dst) == 0 {
			return nil
		}

		place := e.Stored(name)
		info, _ := s.Info(place.From)
		size := dtype.Size(info.DType)
		at := (place.First + int64(first)*int64(len(dst)/n)) * int64(size)

		// What lies as it is asked for is read to its place; a buffer for the rest is kept for the next rows.
		if info.DType == safetensors.F32 {
			data := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)*size)
			_, err := s.ReadAt(place.From, data, at)
			return atEnd(err)
		}

		buffer := buffers.Get().(*[]byte)
		defer buffers.Put(buffer)
		*buffer = slices.Grow((*buffer)[:0], len(dst)*size)[:len(dst)*size]
		if _, err := s.ReadAt(place.From, *buffer, at); atEnd(err) != nil {
			return err
		}
		return dtype.Decode(dst, *buffer, info.DType)
	}
}

// atEnd is an error of reading up to the end of a tensor, of which the end is none.
func atEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
