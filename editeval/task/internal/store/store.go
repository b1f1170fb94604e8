// Package store keeps answers to requests in a file, so that a run that is interrupted, repeated or widened asks a model only what is
// new. A file belongs to one model and one way of encoding, which its first line names; keys are hashes of token ids.
package store

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// ErrOther: the answers in the file belong to another model or another way of encoding.
var ErrOther = errors.New("answers of another model")

// ErrFormat: the file is no file of answers.
var ErrFormat = errors.New("not a file of answers")

// Key identifies a request.
type Key [sha256.Size]byte

// KeyOf hashes runs of token ids and texts.
func KeyOf(kind string, ids [][]int32, texts ...string) Key {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d %d\n", kind, len(ids), len(texts))
	var b []byte
	for _, run := range ids {
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(len(run)))
		for _, id := range run {
			b = binary.LittleEndian.AppendUint32(b, uint32(id))
		}
		h.Write(b)
	}
	for _, t := range texts {
		fmt.Fprintf(h, "%d %s", len(t), t)
	}
	return Key(h.Sum(nil))
}

// Answer is a likelihood or a text.
type Answer struct {
	LL     float64
	Greedy bool
	Text   string
	Tokens int
	Ended  string
}

// line is an answer as it is written.
type line struct {
	Key    string   `json:"k"`
	LL     *float64 `json:"ll,omitempty"` // absent for texts, and where it is not a number
	Greedy bool     `json:"g,omitempty"`
	Text   *string  `json:"t,omitempty"`
	Tokens int      `json:"n,omitempty"`
	Ended  string   `json:"e,omitempty"`
}

// header is the first line.
type header struct {
	Format string `json:"format"`
	Of     string `json:"of"`
}

const format = "compress answers 1"

// Store is an open file of answers. A Store without a file keeps them in memory.
type Store struct {
	mu      sync.Mutex
	answers map[Key]Answer
	f       *os.File
	w       *bufio.Writer
}

// Memory makes a store without a file.
func Memory() *Store { return &Store{answers: map[Key]Answer{}} }

// Open reads a file of answers, or begins one; of identifies the model and the way of encoding. A last line that an interruption has cut
// is dropped.
func Open(path, of string) (*Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	s := &Store{answers: map[Key]Answer{}, f: f}
	if err := s.read(path, of); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func (s *Store) read(path, of string) error {
	r, end := bufio.NewReaderSize(s.f, 1<<20), int64(0)
	for n := 1; ; n++ {
		text, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n == 1 {
			err = checkHeader(text, of)
		} else {
			err = s.parse(text)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
		end += int64(len(text))
	}
	if err := s.f.Truncate(end); err != nil {
		return err
	}
	if _, err := s.f.Seek(end, io.SeekStart); err != nil {
		return err
	}
	s.w = bufio.NewWriter(s.f)
	if end > 0 {
		return nil
	}
	if err := json.NewEncoder(s.w).Encode(header{format, of}); err != nil {
		return err
	}
	return s.Flush()
}

func checkHeader(text, of string) error {
	var h header
	if err := json.Unmarshal([]byte(text), &h); err != nil || h.Format != format {
		return ErrFormat
	}
	if h.Of != of {
		return ErrOther
	}
	return nil
}

func (s *Store) parse(text string) error {
	var l line
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	raw, err := hex.DecodeString(l.Key)
	if err != nil || len(raw) != sha256.Size {
		return fmt.Errorf("%w: key %.80q", ErrFormat, l.Key)
	}
	a := Answer{LL: math.NaN(), Greedy: l.Greedy, Tokens: l.Tokens, Ended: l.Ended}
	if l.LL != nil {
		a.LL = *l.LL
	}
	if l.Text != nil {
		a.Text = *l.Text
	}
	s.answers[Key(raw)] = a
	return nil
}

// Get gives an answer that is there.
func (s *Store) Get(k Key) (Answer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.answers[k]
	return a, ok
}

// Len is the number of answers.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answers)
}

// Add keeps an answer; it is in the file after the next Flush.
func (s *Store) Add(k Key, a Answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[k] = a
	if s.f == nil {
		return nil
	}
	l := line{Key: hex.EncodeToString(k[:]), Greedy: a.Greedy, Tokens: a.Tokens, Ended: a.Ended}
	if a.Ended != "" {
		text := strings.ToValidUTF8(a.Text, "\ufffd")
		l.Text = &text
	} else if !math.IsNaN(a.LL) {
		l.LL = &a.LL
	}
	return json.NewEncoder(s.w).Encode(l)
}

// Flush makes what was added durable.
func (s *Store) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f == nil {
		return nil
	}
	if err := s.w.Flush(); err != nil {
		return err
	}
	return s.f.Sync()
}

// Close flushes and closes the file.
func (s *Store) Close() error {
	if s.f == nil {
		return nil
	}
	return errors.Join(s.Flush(), s.f.Close())
}
