package kernels

// Mat is a row-major view of a buffer: element (i, j) is at Off + i·Stride + j. The zero Mat means "absent" where an
// operation takes an optional operand.
type Mat struct {
	Buf        *Buffer
	Off        int // elements
	Rows, Cols int
	Stride     int // elements between the starts of two rows; at least Cols
}

// MatOf views the first rows·cols elements of b.
func MatOf(b *Buffer, rows, cols int) Mat {
	if rows*cols > b.Len {
		panic("kernels: matrix is larger than its buffer")
	}
	return Mat{Buf: b, Rows: rows, Cols: cols, Stride: cols}
}

// IsZero reports whether the view is absent.
func (m Mat) IsZero() bool { return m.Buf == nil }

// DType is the element type of the buffer.
func (m Mat) DType() DType { return m.Buf.DType }

// Len is Rows·Cols.
func (m Mat) Len() int { return m.Rows * m.Cols }

// Dense reports whether the rows follow each other without gaps.
func (m Mat) Dense() bool { return m.Stride == m.Cols || m.Rows <= 1 }

// RowRange views rows [lo, hi).
func (m Mat) RowRange(lo, hi int) Mat {
	if lo < 0 || hi < lo || hi > m.Rows {
		panic("kernels: row range outside the matrix")
	}
	m.Off, m.Rows = m.Off+lo*m.Stride, hi-lo
	return m
}

// ColRange views columns [lo, hi).
func (m Mat) ColRange(lo, hi int) Mat {
	if lo < 0 || hi < lo || hi > m.Cols {
		panic("kernels: column range outside the matrix")
	}
	m.Off, m.Cols = m.Off+lo, hi-lo
	return m
}

// Reshape views the same elements as rows×cols. The matrix must be dense.
func (m Mat) Reshape(rows, cols int) Mat {
	if !m.Dense() || rows*cols != m.Len() {
		panic("kernels: reshape of a strided matrix or to another size")
	}
	m.Rows = rows
	m.Cols = cols
	m.Stride = cols
	return m
}

// RowF32 is row i of an F32 matrix on a host device.
func (m Mat) RowF32(i int) []float32 {
	o := m.Off + i*m.Stride
	return m.Buf.F32()[o : o+m.Cols : o+m.Cols]
}

// RowU16 is row i of a BF16 or F16 matrix on a host device, as bit patterns.
func (m Mat) RowU16(i int) []uint16 {
	o := m.Off + i*m.Stride
	return m.Buf.U16()[o : o+m.Cols : o+m.Cols]
}

// RowU8 is row i of a U8 matrix on a host device.
func (m Mat) RowU8(i int) []uint8 {
	o := m.Off + i*m.Stride
	return m.Buf.U8()[o : o+m.Cols : o+m.Cols]
}
