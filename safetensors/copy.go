package safetensors

import (
	"errors"
	"io"
)

// Copy copies the data of the tensor from of src to the tensor to of dst, which must have the
// same size in bytes, through buf (1 MiB is made if it is empty), so that memory does not depend on
// the tensor's size. Other Copies may run at the same time with buffers of their own.
func Copy(dst Sink, to string, src Source, from string, buf []byte) error {
	if len(buf) == 0 {
		buf = make([]byte, 1<<20)
	}

	for off := int64(0); ; {
		n, err := src.ReadAt(from, buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}

		if werr := dst.WriteAt(to, buf[:n], off); werr != nil {
			return werr
		}

		off += int64(n)
		if err != nil {
			return nil
		}
	}
}
