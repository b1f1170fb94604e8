package corpus

import (
	"errors"

	"github.com/modelcompress/compress/internal/failure"
)

// The ways in which data can be wrong. Errors of this package name the file and wrap one of these, or an error of the
// file system; test with errors.Is.
var (
	// ErrEmpty: the file holds no text, no record or no row.
	ErrEmpty = errors.New("nothing in it")
	// ErrShort: there are fewer tokens than one window needs.
	ErrShort = failure.New("too short for one window", "use a smaller --seqlen or a longer text")
	// ErrRecord: a line is not JSON, or not a record of a known form.
	ErrRecord = errors.New("bad record")
	// ErrUTF8: the text is not UTF-8.
	ErrUTF8 = failure.New("not valid UTF-8",
		"iconv -f LATIN1 -t UTF-8 FILE > NEW converts a text, from the encoding that it has")
	// ErrVocabulary: a token id is outside the vocabulary.
	ErrVocabulary = errors.New("token id outside the vocabulary")
	// ErrIDs: a file of token ids is malformed.
	ErrIDs = errors.New("bad token ids")
	// ErrTooLarge: the file, a record or what a compressed file unpacks to is larger than is accepted.
	ErrTooLarge = errors.New("too large")
	// ErrFolder: a folder is not the texts or records of one set of data.
	ErrFolder = errors.New("not one set of data")
	// ErrOptions: the options contradict themselves or the file.
	ErrOptions = failure.Misuse("bad options", "")
	// ErrNoTokenizer: the file holds text and no tokenizer was given.
	ErrNoTokenizer = failure.New("text needs a tokenizer",
		"give token ids (.safetensors or .json), or put tokenizer.json into the model's folder")
)
