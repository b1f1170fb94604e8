// Package store keeps answers to requests in a file, so that a run that is interrupted, repeated or widened
// asks a model only what is new. A file belongs to one model and one way of encoding, which its first line
// names; keys are hashes of token ids. It is no stage.Journal: lines stand in any order, become part of finished
// results as they are, and a line that is damaged costs one question, not all behind it.
package store

import (
	"bufio"
	"bytes"
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
	Last   bool     `json:"z,omitempty"` // of those that were made durable together
	Count  int      `json:"c,omitempty"` // how many these are, with the last; absent in files of earlier builds
	Sum    string   `json:"s,omitempty"` // of the rest of the line
}

// seal writes a line with its checksum.
func (l line) seal() ([]byte, error) {
	l.Sum = ""
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	l.Sum = hex.EncodeToString(sum[:8])
	text, err = json.Marshal(l)
	return append(text, '\n'), err
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
	pending []line // added since the last Flush
	damaged int    // lines that were dropped
}

// Memory makes a store without a file.
func Memory() *Store { return &Store{answers: map[Key]Answer{}} }

// Open reads a file of answers, or begins one; of identifies the model and the way of encoding. Answers that were made
// durable together are kept together: where an interruption has cut some of them, or one is missing, there twice or
// does not have the checksum that it was written with, all of them are dropped, so that they are asked again as they
// were asked before.
func Open(path, of string) (*Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}

	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
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
	r := bufio.NewReaderSize(s.f, 1<<20)
	head, err := r.ReadString('\n')
	if errors.Is(err, io.EOF) { // new, or cut within its first line
		return s.begin(of)
	}

	if err == nil {
		err = checkHeader(head, of)
	}
	if err != nil {
		return fmt.Errorf("%s:1: %w", path, err)
	}

	p := passes{s: s, end: int64(len(head))}
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			return err
		}
		p.take(text)
	}

	return p.settle()
}

// begin writes the first line.
func (s *Store) begin(of string) error {
	text, err := json.Marshal(header{format, of})
	if err == nil {
		err = s.f.Truncate(0)
	}
	if err == nil {
		_, err = s.f.Write(append(text, '\n'))
	}
	return errors.Join(err, s.f.Sync())
}

// passes reads answers by what was made durable together.
type passes struct {
	s     *Store
	end   int64  // of the file, as far as nothing was dropped
	moved []byte // what is whole behind something that was dropped
	lines []line // of the pass that is being read
	text  []byte
	bad   bool // it has a damaged line
	gap   bool // something was dropped
}

// take adds a line.
func (p *passes) take(text []byte) {
	var l line
	sealed, err := []byte(nil), json.Unmarshal(text, &l)
	if err == nil {
		sealed, err = l.seal()
	}

	raw, _ := hex.DecodeString(l.Key)
	if err != nil || !bytes.Equal(sealed, text) || len(raw) != sha256.Size {
		p.bad = true
		p.s.damaged++
	}

	p.lines, p.text = append(p.lines, l), append(p.text, text...)
	if !l.Last {
		return
	}
	if l.Count > 0 && l.Count != len(p.lines) && !p.bad { // a line that is missing, or twice
		p.bad = true
		p.s.damaged++
	}

	switch {
	case p.bad:
		p.gap = true
	case p.gap:
		p.moved = append(p.moved, p.text...)
	default:
		p.end += int64(len(p.text))
	}

	if !p.bad {
		for _, l := range p.lines {
			p.s.keep(l)
		}
	}

	p.lines = p.lines[:0]
	p.text = p.text[:0]
	p.bad = false
}

// settle removes from the file what was dropped.
func (p *passes) settle() error {
	f := p.s.f
	if err := f.Truncate(p.end); err != nil {
		return err
	}
	if len(p.moved) == 0 {
		return nil
	}
	_, err := f.Write(p.moved)
	return errors.Join(err, f.Sync())
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

// keep takes an answer that was read.
func (s *Store) keep(l line) {
	raw, _ := hex.DecodeString(l.Key)
	a := Answer{LL: math.NaN(), Greedy: l.Greedy, Tokens: l.Tokens, Ended: l.Ended}
	if l.LL != nil {
		a.LL = *l.LL
	}
	if l.Text != nil {
		a.Text = *l.Text
	}
	s.answers[Key(raw)] = a
}

// Damaged is how many lines of the file were dropped because they do not have the checksum that they were
// written with, or have none, and how many times lines were missing or too many.
func (s *Store) Damaged() int { return s.damaged }

// Get gives an answer that is there.
func (s *Store) Get(k Key) (Answer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.answers[k]
	return a, ok
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

	s.pending = append(s.pending, l)
	return nil
}

// Flush makes what was added durable.
func (s *Store) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.f == nil || len(s.pending) == 0 {
		return nil
	}

	last := &s.pending[len(s.pending)-1]
	last.Last = true
	last.Count = len(s.pending)

	var text []byte
	for _, l := range s.pending {
		sealed, err := l.seal()
		if err != nil {
			return err
		}
		text = append(text, sealed...)
	}

	s.pending = s.pending[:0]
	if _, err := s.f.Write(text); err != nil {
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
