package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/modelcompress/compress/safetensors"
)

// hostile damages a .safetensors file in one way: hostile KIND FILE
func hostile(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[1])
	data, err := os.ReadFile(path)
	ts.Check(err)
	n := binary.LittleEndian.Uint64(data)

	head, body := data[8:8+n], data[8+n:]
	switch args[0] {
	case "truncated":
		data = data[:len(data)-100]
	case "oversized": // a header that claims to be larger than the file
		binary.LittleEndian.PutUint64(data, 1<<40)
	case "overlap":
		data = rebuilt(ts, head, body, func(e map[string]entry) {
			second := e["model.layers.0.mlp.up_proj.weight"]
			second.Offsets[0] -= 64
			second.Offsets[1] -= 64
			e["model.layers.0.mlp.up_proj.weight"] = second
		})
	case "lying": // a shape that does not fit the data
		data = rebuilt(ts, head, body, func(e map[string]entry) {
			norm := e["model.norm.weight"]
			norm.Shape = []int64{97}
			e["model.norm.weight"] = norm
		})
	case "nan", "inf", "nan-embed":
		f, err := safetensors.Open(path)
		ts.Check(err)
		info, _ := f.Info("model.layers.1.mlp.down_proj.weight")
		if args[0] == "nan-embed" {
			info, _ = f.Info("model.embed_tokens.weight")
		}

		ts.Check(f.Close())
		value := float32(math.Inf(1))
		if args[0] != "inf" {
			value = float32(math.NaN())
		}

		at := info.Offset + 2*(3*info.Shape[1]+5)
		binary.LittleEndian.PutUint16(data[at:], uint16(math.Float32bits(value)>>16))
	case "packed": // a bit of a bitmask that there is no value for
		f, err := safetensors.Open(path)
		ts.Check(err)
		info, _ := f.Info("model.layers.0.mlp.down_proj.bitmask")
		ts.Check(f.Close())
		at := info.Offset
		for data[at] == 0xff {
			at++
		}

		data[at] |= data[at] + 1
	default:
		ts.Fatalf("unknown damage %q", args[0])
	}

	ts.Check(os.WriteFile(path, data, 0o666))
}

// entry is a tensor in a header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// rebuilt changes the entries of a header.
func rebuilt(ts *testscript.TestScript, head, body []byte, change func(map[string]entry)) []byte {
	var raw map[string]json.RawMessage
	ts.Check(json.Unmarshal(head, &raw))

	entries := map[string]entry{}
	for name, text := range raw {
		var e entry
		if name != "__metadata__" {
			ts.Check(json.Unmarshal(text, &e))
			entries[name] = e
		}
	}

	change(entries)
	text, err := json.Marshal(entries)
	ts.Check(err)

	return bytes.Join([][]byte{binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, body}, nil)
}

// tensors writes a .safetensors file of I64 matrices: tensors FILE NAME=1,2/3,4 …
func tensors(ts *testscript.TestScript, _ bool, args []string) {
	var infos []safetensors.Info
	data := map[string][]byte{}
	for _, arg := range args[1:] {
		name, values, _ := strings.Cut(arg, "=")
		rows := strings.Split(values, "/")
		cols := 0
		for _, row := range rows {
			list := strings.Split(row, ",")
			cols = len(list)

			for _, v := range list {
				n, err := strconv.ParseInt(v, 10, 64)
				ts.Check(err)
				data[name] = binary.LittleEndian.AppendUint64(data[name], uint64(n))
			}
		}

		infos = append(infos,
			safetensors.Info{Name: name, DType: safetensors.I64, Shape: []int64{int64(len(rows)), int64(cols)}})
	}

	w, err := safetensors.Create(ts.MkAbs(args[0]), infos, nil, safetensors.Options{})
	ts.Check(err)
	for name, p := range data {
		ts.Check(w.WriteTensor(name, p))
	}

	ts.Check(w.Finish())
}
