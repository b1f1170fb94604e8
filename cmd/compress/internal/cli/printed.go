package cli

import (
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/modelcompress/compress/internal/system"
)

// errPrint: results are lost on their way to stdout.
var errPrint = errors.New("not everything could be printed")

// printed keeps the first error of stdout, so that whoever prints need not look at each. A reader that has gone
// away is none: it has what it wanted.
type printed struct {
	io.Writer
	err error
}

// Write implements [io.Writer].
func (p *printed) Write(text []byte) (int, error) {
	n, err := p.Writer.Write(text)
	if p.err == nil && err != nil && !system.Is(err, syscall.EPIPE) {
		p.err = err
	}
	return n, err
}

// printedFile is printed where stdout is a file, which libraries ask whether it is a terminal.
type printedFile struct {
	*printed
	file *os.File
}

// Fd, Read and Close are those of the file.
func (p printedFile) Fd() uintptr                   { return p.file.Fd() }
func (p printedFile) Read(text []byte) (int, error) { return p.file.Read(text) }
func (p printedFile) Close() error                  { return p.file.Close() }

// keeping makes a writer that keeps the first error.
func keeping(out io.Writer) (io.Writer, *printed) {
	p := &printed{Writer: out}
	if f, ok := out.(*os.File); ok {
		return printedFile{p, f}, p
	}
	return p, p
}
