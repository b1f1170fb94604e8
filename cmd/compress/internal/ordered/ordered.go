// Package ordered reads and writes JSON objects without changing the order of their keys.
package ordered

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Member is one key of a JSON object with its value as it stands.
type Member struct {
	Key   string
	Value json.RawMessage
}

// Parse decodes an object.
func Parse(data []byte) ([]Member, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	switch t, err := d.Token(); {
	case len(bytes.TrimSpace(data)) == 0:
		return nil, fmt.Errorf("not a JSON object: the text is empty")
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return nil, fmt.Errorf("not a JSON object: it begins with a byte order mark (HINT: save it as UTF-8 without one)")
	case err != nil:
		return nil, broken(err)
	case t != json.Delim('{'):
		return nil, fmt.Errorf("not a JSON object: it begins with %v", t)
	}
	var out []Member
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, broken(err)
		}
		m := Member{Key: key.(string)}
		if err := d.Decode(&m.Value); err != nil {
			return nil, broken(err)
		}
		out = append(out, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, broken(err)
	}
	return out, nil
}

// broken words an error inside an object.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("not a JSON object: %w", err)
}

// Set replaces or adds a key; a nil value removes it.
func Set(list []Member, key string, value any) ([]Member, error) {
	at := len(list)
	for i, m := range list {
		if m.Key == key {
			at = i
		}
	}
	if value == nil {
		return append(list[:at:at], list[min(at+1, len(list)):]...), nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	if at == len(list) {
		return append(list, Member{key, raw}), nil
	}
	list[at].Value = raw
	return list, nil
}

// Get gives the value of a key, nil if there is none.
func Get(list []Member, key string) json.RawMessage {
	for _, m := range list {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// Join encodes the members as one object, indented by two spaces.
func Join(list []Member) ([]byte, error) {
	var b, out bytes.Buffer
	b.WriteByte('{')
	for i, m := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.Key)
		if err != nil {
			return nil, err
		}
		b.Write(append(append(key, ':'), m.Value...))
	}
	b.WriteByte('}')
	err := json.Indent(&out, b.Bytes(), "", "  ")
	out.WriteByte('\n')
	return out.Bytes(), err
}
