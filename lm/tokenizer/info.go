package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/weights"
)

// info is what the files beside tokenizer.json say about it.
type info struct {
	bos, eos, pad  int32 // -1: not known
	addBOS, addEOS *bool
}

// specialName is a token in tokenizer_config.json: its text, or an object with the text in "content", or null.
type specialName string

// UnmarshalJSON reads either form.
func (s *specialName) UnmarshalJSON(data []byte) error {
	var object struct{ Content string }
	if err := json.Unmarshal(data, (*string)(s)); err == nil {
		return nil
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	*s = specialName(object.Content)
	return nil
}

// readInfo fills info from tokenizer_config.json, then special_tokens_map.json; a missing file is fine. What neither
// says stays as the post-processor has it.
func (t *Tokenizer) readInfo(files *weights.Files) error {
	var bos, eos, pad specialName
	for _, name := range []string{"tokenizer_config.json", "special_tokens_map.json"} {
		var c struct {
			BOS    specialName `json:"bos_token"`
			EOS    specialName `json:"eos_token"`
			PAD    specialName `json:"pad_token"`
			AddBOS *bool       `json:"add_bos_token"`
			AddEOS *bool       `json:"add_eos_token"`
		}

		data, err := files.Read(name, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if errors.Is(err, safefile.ErrNotRegular) {
			return err
		}

		if err == nil {
			err = json.Unmarshal(data, &c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %w", weights.Place(files.Path(), name), ErrSyntax, err)
		}

		bos, eos, pad = firstOf(bos, c.BOS), firstOf(eos, c.EOS), firstOf(pad, c.PAD)
		t.info.addBOS, t.info.addEOS = firstOf(t.info.addBOS, c.AddBOS), firstOf(t.info.addEOS, c.AddEOS)
	}

	t.setID(&t.info.bos, bos)
	t.setID(&t.info.eos, eos)
	t.setID(&t.info.pad, pad)

	return nil
}

// setID stores the id of a token; a name outside the vocabulary leaves what is known (configurations often name
// tokens that the vocabulary lacks).
func (t *Tokenizer) setID(id *int32, name specialName) {
	if v, ok := t.TokenID(string(name)); ok && name != "" {
		*id = v
	}
}

func firstOf[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}
