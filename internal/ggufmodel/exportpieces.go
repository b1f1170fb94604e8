package ggufmodel

import (
	"encoding/binary"
	"errors"
	"math"
)

// pieceScore is a token of a tokenizer.model.
type pieceScore struct {
	text  string
	score float32
}

var errPieces = errors.New("it is not a model of SentencePiece")

// readPieces reads the tokens of a tokenizer.model, which is a message of protocol buffers: field 1 is a token, whose
// field 1 is its text and field 2 its score. https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
func readPieces(text []byte) ([]pieceScore, error) {
	var list []pieceScore
	err := eachField(text, func(field int, value []byte) error {
		if field != 1 {
			return nil
		}

		var p pieceScore
		err := eachField(value, func(field int, value []byte) error {
			switch {
			case field == 1:
				p.text = string(value)
			case field == 2 && len(value) == 4:
				p.score = math.Float32frombits(binary.LittleEndian.Uint32(value))
				if p.score-p.score != 0 {
					return errPieces
				}
			}
			return nil
		})
		list = append(list, p)
		return err
	})
	if err == nil && len(list) == 0 {
		err = errPieces
	}

	return list, err
}

// eachField calls f with the fields of a message: the bytes of those with a length or a fixed size, and nothing for
// numbers of varying length.
func eachField(text []byte, f func(field int, value []byte) error) error {
	for len(text) > 0 {
		key, n := binary.Uvarint(text)
		if n <= 0 || key>>3 == 0 || key>>3 > math.MaxInt32 {
			return errPieces
		}
		text = text[n:]

		size, skip := uint64(0), 0
		switch key & 7 {
		case 0:
			if _, skip = binary.Uvarint(text); skip <= 0 {
				return errPieces
			}
		case 1:
			size = 8
		case 2:
			if size, skip = binary.Uvarint(text); skip <= 0 {
				return errPieces
			}
		case 5:
			size = 4
		default:
			return errPieces
		}

		text = text[skip:]
		if size > uint64(len(text)) {
			return errPieces
		}
		if err := f(int(key>>3), text[:size]); err != nil {
			return err
		}
		text = text[size:]
	}

	return nil
}
