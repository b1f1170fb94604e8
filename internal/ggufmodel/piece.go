package ggufmodel

import (
	"fmt"

	"github.com/modelcompress/compress/gguf"
)

// piece is a part of every matrix of a tensor of the file: some of its rows, or, where the file has the matrices
// transposed, some of its columns. A vector counts as a matrix of one column.
type piece struct {
	info   gguf.Info
	stride int // rows of a matrix in the file
	cols   int // columns of a matrix in the file
	stack  int // matrices in the file
	first  int // row that the piece begins with
	rows   int

	transposed bool // rows are columns in the file
	start      int  // matrix of the file that is the first one here
}

// width is the length of a row of the piece.
func (p *piece) width() int {
	if p.transposed {
		return p.stride
	}
	return p.cols
}

// read writes rows [first, first+n) of a matrix of the piece, or of its transpose if flipped, to dst. data is the
// whole tensor of the file.
func (p *piece) read(dst []float32, data []byte, matrix, first, n int, flipped bool) error {
	matrix += p.start
	switch {
	case p.transposed == flipped && !flipped:
		return p.readRows(dst, data, matrix*p.stride+p.first+first, n)
	case p.transposed && !flipped:
		return p.readColumns(dst, data, matrix*p.stride, p.stride, p.first+first, n)
	case p.transposed:
		return p.readPart(dst, data, matrix*p.stride+first, n)
	}
	return p.readColumns(dst, data, matrix*p.stride+p.first, p.rows, first, n)
}

// readRows decodes rows of the file.
func (p *piece) readRows(dst []float32, data []byte, row, n int) error {
	size := int(p.info.RowSize())
	if int(p.info.Cols()) != p.cols { // elements of a vector, which is one row of the file
		elements, bytes := p.info.Type.Block()
		size = int(bytes / elements)
	}
	return p.decode(dst, data[row*size:][:n*size])
}

// readPart decodes columns [p.first, p.first+p.rows) of rows of the file.
func (p *piece) readPart(dst []float32, data []byte, row, n int) error {
	whole := make([]float32, p.cols)
	for i := range n {
		if err := p.readRows(whole, data, row+i, 1); err != nil {
			return err
		}
		copy(dst[i*p.rows:][:p.rows], whole[p.first:])
	}
	return nil
}

// readColumns decodes columns [col, col+n) of rows [row, row+rows) of the file, each as a row of dst. Of rows in
// blocks, no more blocks are decoded than hold the columns.
func (p *piece) readColumns(dst []float32, data []byte, row, rows, col, n int) error {
	elements, bytes := p.info.Type.Block()
	size := int(bytes)
	each := int(elements)
	begin := col / each
	end := (col + n + each - 1) / each
	part := make([]float32, (end-begin)*each)
	line := p.cols / each * size

	for r := range rows {
		at := (row+r)*line + begin*size
		if err := p.decode(part, data[at:][:(end-begin)*size]); err != nil {
			return err
		}
		for i := range n {
			dst[i*rows+r] = part[col-begin*each+i]
		}
	}

	return nil
}

// decode writes the elements of whole blocks.
func (p *piece) decode(dst []float32, src []byte) error {
	return p.named(p.info.Type.Decode(dst, src))
}

// named makes an error tell which tensor of the file it is about.
func (p *piece) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of the file: %w", p.info.Name, err)
}
