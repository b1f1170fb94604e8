package arrow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Slots of the tables of Arrow's Message.fbs, Schema.fbs and File.fbs: where a table's own index has their fields.
const (
	messageVersion  = 4
	messageKind     = 6
	messageHeader   = 8
	messageBody     = 10
	messageMetadata = 12

	schemaFields   = 6
	schemaMetadata = 8

	fieldName       = 4
	fieldKind       = 8
	fieldDictionary = 12
	fieldChildren   = 14
	fieldMetadata   = 16

	pairKey   = 4
	pairValue = 6

	dictionaryOfField = 4 // id
	dictionaryID      = 4
	dictionaryData    = 6

	batchRows        = 4
	batchNodes       = 6
	batchBuffers     = 8
	batchCompression = 10
	batchVariadic    = 12

	compressionCodec = 4

	footerDictionaries = 8
	footerBatches      = 10
)

// Sizes of the elements of vectors.
const (
	offsetSize = 4
	numberSize = 8
	nodeSize   = 16
	bufferSize = 16
	blockSize  = 24
)

// Kinds of messages.
const (
	kindSchema     = 1
	kindDictionary = 2
	kindBatch      = 3
)

// Versions of the format: since Arrow 0.8, and since 1.0.
const (
	version4 = 3
	version5 = 4
)

// refused are kinds of columns that no record can have.
var refused = map[byte]string{
	7: "decimals", 11: "intervals", 14: "unions", 17: "maps", 22: "runs (run-end encoding)",
}

// needsOf is what a column of each kind needs by itself: a node, and buffers for which values are there, for lengths
// and for the values. Views have further buffers, as many as each batch says.
var needsOf = map[byte]needs{
	1:  {nodes: 1},                       // nothing but absent values
	2:  {nodes: 1, buffers: 2},           // whole numbers
	3:  {nodes: 1, buffers: 2},           // fractions
	4:  {nodes: 1, buffers: 3},           // binaries
	5:  {nodes: 1, buffers: 3},           // texts
	6:  {nodes: 1, buffers: 2},           // booleans
	8:  {nodes: 1, buffers: 2},           // dates
	9:  {nodes: 1, buffers: 2},           // times of a day
	10: {nodes: 1, buffers: 2},           // points in time
	12: {nodes: 1, buffers: 2},           // lists
	13: {nodes: 1, buffers: 1},           // structs
	15: {nodes: 1, buffers: 2},           // binaries of one length
	16: {nodes: 1, buffers: 1},           // lists of one length
	18: {nodes: 1, buffers: 2},           // spans of time
	19: {nodes: 1, buffers: 3},           // binaries, as the next two with lengths of 64 bits
	20: {nodes: 1, buffers: 3},           // texts
	21: {nodes: 1, buffers: 2},           // lists
	23: {nodes: 1, buffers: 2, views: 1}, // views of binaries
	24: {nodes: 1, buffers: 2, views: 1}, // views of texts
	25: {nodes: 1, buffers: 3},           // views of lists
	26: {nodes: 1, buffers: 3},           // the same with lengths of 64 bits
}

// table is a table of a message, which is in the form of FlatBuffers: an index of its own says where in the message the
// fields are. What lies outside of the message is a panic, as everywhere in that library.
type table struct{ flatbuffers.Table }

// root is the table that a message is.
func root(b []byte) table {
	return table{flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}}
}

// sub is a table that a field refers to.
func (t table) sub(slot flatbuffers.VOffsetT) (sub table, ok bool) {
	o := t.Offset(slot)
	if o == 0 {
		return table{}, false
	}
	return table{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + flatbuffers.UOffsetT(o))}}, true
}

// vector is a list of elements of one size.
type vector struct {
	first flatbuffers.UOffsetT
	n     int
	size  int
}

func (v vector) at(i int) flatbuffers.UOffsetT { return v.first + flatbuffers.UOffsetT(i*v.size) }

// vector is the list that a field refers to, all of which is in the message; one that is left out is empty.
func (t table) vector(slot flatbuffers.VOffsetT, size int) (vector, error) {
	o := t.Offset(slot)
	if o == 0 {
		return vector{}, nil
	}

	v := vector{first: t.Vector(flatbuffers.UOffsetT(o)), n: t.VectorLen(flatbuffers.UOffsetT(o)), size: size}
	if v.n < 0 || int64(v.first)+int64(v.n)*int64(size) > int64(len(t.Bytes)) {
		return vector{}, fmt.Errorf("%w: a list of %d elements", ErrFormat, v.n)
	}
	return v, nil
}

// tables calls a function with every table that a list of them has.
func (t table) tables(slot flatbuffers.VOffsetT, each func(table) error) error {
	v, err := t.vector(slot, offsetSize)
	if err != nil {
		return err
	}
	for i := range v.n {
		if err := each(table{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(v.at(i))}}); err != nil {
			return err
		}
	}
	return nil
}

// message is what a message says about what follows it.
type message struct {
	body  int64
	batch *batch // nil: it is a schema
}

// needs are how many elements of its lists the library takes of the description of a record batch, unasked whether they
// are there.
type needs struct{ nodes, buffers, views int }

func (n *needs) add(more needs) {
	n.nodes += more.nodes
	n.buffers += more.buffers
	n.views += more.views
}

// schema is what the schema says of the messages after it.
type schema struct {
	left       *allowance
	columns    int             // in all, at any depth
	batch      needs           // of a record batch
	dictionary map[int64]needs // of the values of a dictionary, by its number
}

// checkMessage checks a message before the library gets it, which allocates as many elements as it names.
func (s *schema) checkMessage(meta []byte) (*message, error) {
	t := root(meta)
	kind := t.GetByteSlot(messageKind, 0)
	m := &message{body: t.GetInt64Slot(messageBody, 0)}
	version := t.GetInt16Slot(messageVersion, 0)
	header, ok := t.sub(messageHeader)
	switch {
	case version < version4 || version > version5:
		return nil, fmt.Errorf("%w: version %d of the format", ErrUnsupported, version+1)
	case !ok || m.body < 0 || kind == kindSchema && m.body > 0:
		return nil, fmt.Errorf("%w: message of kind %d with %d bytes", ErrFormat, kind, m.body)
	}
	if err := checkPairs(t, messageMetadata, s.left); err != nil {
		return nil, err
	}

	need := s.batch
	switch kind {
	case kindSchema:
		if err := checkPairs(header, schemaMetadata, s.left); err != nil {
			return nil, err
		}
		s.batch = needs{}
		s.columns = 0
		s.dictionary = map[int64]needs{}
		return m, s.fields(header, schemaFields, 0, &s.batch)
	case kindDictionary:
		id := header.GetInt64Slot(dictionaryID, 0)
		if need, ok = s.dictionary[id]; !ok {
			return nil, fmt.Errorf("%w: values of a dictionary %d, which no column has", ErrFormat, id)
		}
		if header, ok = header.sub(dictionaryData); !ok {
			return nil, fmt.Errorf("%w: a dictionary without values", ErrFormat)
		}
	case kindBatch:
	default:
		return nil, fmt.Errorf("%w: message of kind %d", ErrUnsupported, kind)
	}

	var err error
	m.batch, err = checkBatch(header, m.body, need)
	return m, err
}

// checkPairs checks the keys and values that a table can carry.
func checkPairs(t table, slot flatbuffers.VOffsetT, left *allowance) error {
	return t.tables(slot, func(pair table) error {
		return left.take(64 + pair.textLen(pairKey) + pair.textLen(pairValue))
	})
}

// textLen is how long the text is that a field refers to.
func (t table) textLen(slot flatbuffers.VOffsetT) int64 {
	o := t.Offset(slot)
	if o == 0 {
		return 0
	}
	return int64(len(t.ByteVector(t.Pos + flatbuffers.UOffsetT(o))))
}

// fields checks columns, and adds what they need to that of those before. It counts them, since lists of them can share
// their elements, so that there are more than would find room in the message.
func (s *schema) fields(t table, slot flatbuffers.VOffsetT, depth int, need *needs) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: columns nested more than %d deep", ErrUnsupported, maxDepth)
	}
	return t.tables(slot, func(f table) error {
		if s.columns++; s.columns > maxFields {
			return fmt.Errorf("%w: more than %d columns", ErrUnsupported, maxFields)
		}
		if err := s.left.take(256 + f.textLen(fieldName)); err != nil {
			return err
		}

		kind := f.GetByteSlot(fieldKind, 0)
		if name, ok := refused[kind]; ok {
			var column []byte
			if o := f.Offset(fieldName); o != 0 {
				column = f.ByteVector(f.Pos + flatbuffers.UOffsetT(o))
			}
			return fmt.Errorf("column %.100q: %w: %s (HINT: write the file anew without it, or with it as text)",
				column, ErrUnsupported, name)
		}
		if err := checkPairs(f, fieldMetadata, s.left); err != nil {
			return err
		}
		own, ok := needsOf[kind]
		if !ok {
			return fmt.Errorf("%w: columns of kind %d", ErrUnsupported, kind)
		}

		encoding, ok := f.sub(fieldDictionary)
		if !ok {
			need.add(own)
			return s.fields(f, fieldChildren, depth+1, need)
		}

		// A batch has the places in the dictionary, and the dictionary has what the column is otherwise.
		need.add(needs{nodes: 1, buffers: 2})
		if err := s.fields(f, fieldChildren, depth+1, &own); err != nil {
			return err
		}
		id := encoding.GetInt64Slot(dictionaryOfField, 0)
		other := s.dictionary[id]
		s.dictionary[id] = needs{
			max(own.nodes, other.nodes), max(own.buffers, other.buffers), max(own.views, other.views),
		}
		return nil
	})
}

// batch is the description of a record batch, or of the values of a dictionary.
type batch struct {
	t       table
	buffers vector
}

func checkBatch(t table, body int64, need needs) (*batch, error) {
	nodes, err := t.vector(batchNodes, nodeSize)
	if err != nil {
		return nil, err
	}
	for i := range nodes.n {
		rows, nulls := t.GetInt64(nodes.at(i)), t.GetInt64(nodes.at(i)+8)
		if rows < 0 || rows > 1<<40 || nulls < 0 || nulls > rows {
			return nil, fmt.Errorf("%w: a column of %d values, %d of them absent", ErrFormat, rows, nulls)
		}
	}
	if rows := t.GetInt64Slot(batchRows, 0); rows < 0 || rows > 1<<40 {
		return nil, fmt.Errorf("%w: a record batch of %d rows", ErrFormat, rows)
	}

	b := &batch{t: t}
	if b.buffers, err = t.vector(batchBuffers, bufferSize); err != nil {
		return nil, err
	}
	for i := range b.buffers.n {
		if at, n := b.buffer(i); at < 0 || n < 0 || at > body || n > body-at {
			return nil, fmt.Errorf("%w: %d bytes at %d of a record batch of %d", ErrFormat, n, at, body)
		}
	}

	variadic, err := t.vector(batchVariadic, numberSize)
	if err != nil {
		return nil, err
	}
	for i := range variadic.n {
		n := t.GetInt64(variadic.at(i))
		if n < 0 || n > int64(b.buffers.n) {
			return nil, fmt.Errorf("%w: a column of %d buffers", ErrFormat, n)
		}
		if i < need.views {
			need.buffers += int(n)
		}
	}
	if nodes.n < need.nodes || b.buffers.n < need.buffers || variadic.n < need.views {
		return nil, fmt.Errorf("%w: a record batch of %d columns and %d buffers, not of %d and %d", ErrFormat, nodes.n,
			b.buffers.n, need.nodes, need.buffers)
	}
	return b, nil
}

// buffer is where in the body a buffer is.
func (b *batch) buffer(i int) (at, n int64) {
	p := b.buffers.at(i)
	return b.t.GetInt64(p), b.t.GetInt64(p + 8)
}

// Codecs of compressed bodies.
const (
	codecLZ4  = 0
	codecZstd = 1
)

// unpack unpacks the buffers of a body, and makes the description one of a body that is not packed: the library would
// trust the sizes that stand before the buffers, and a frame of Zstandard on the memory that it asks for.
func (b *batch) unpack(body []byte, u *unpacker) ([]byte, error) {
	compression, ok := b.t.sub(batchCompression)
	if !ok {
		return body, nil
	}
	codec := compression.GetByteSlot(compressionCodec, codecLZ4)
	if codec != codecLZ4 && codec != codecZstd {
		return nil, fmt.Errorf("%w: compression %d; known: LZ4, Zstandard", ErrUnsupported, codec)
	}

	var out []byte
	for i := range b.buffers.n {
		at, n := b.buffer(i)
		if n == 0 {
			continue
		}
		plain, err := u.buffer(body[at:at+n], codec, int64(len(out)))
		if err != nil {
			return nil, err
		}

		p := b.buffers.at(i)
		flatbuffers.WriteInt64(b.t.Bytes[p:], int64(len(out)))
		flatbuffers.WriteInt64(b.t.Bytes[p+8:], int64(len(plain)))
		out = append(out, plain...)
		out = append(out, make([]byte, -len(out)&7)...) // numbers of 8 bytes begin at multiples of 8
	}

	// The index of the table no longer has the compression: it is found where the table points, backwards.
	index := flatbuffers.UOffsetT(flatbuffers.SOffsetT(b.t.Pos) - b.t.GetSOffsetT(b.t.Pos))
	flatbuffers.WriteVOffsetT(b.t.Bytes[index+batchCompression:], 0)
	return out, nil
}

// zstandard is the decoder of all files, which makes no more of a buffer than there is room for.
var zstandard = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true))
})

// unpacker unpacks the buffers of a file.
type unpacker struct {
	left *allowance
	lz4  *lz4.Reader // nil: none was needed yet
}

// buffer unpacks a buffer, which begins with its size unpacked, or with -1 if it is not packed.
func (u *unpacker) buffer(p []byte, codec byte, before int64) ([]byte, error) {
	if len(p) < 8 {
		return nil, fmt.Errorf("%w: a packed buffer of %d bytes", ErrFormat, len(p))
	}
	size := int64(binary.LittleEndian.Uint64(p))
	p = p[8:]
	if size == -1 {
		return p, u.left.take(int64(len(p)))
	}

	// Unpacked, it is copied once.
	if size > maxBody || before+size > maxBody {
		return nil, fmt.Errorf("%w: a record batch of more than %d bytes (HINT: write the file anew in smaller "+
			"batches)", ErrUnsupported, int64(maxBody))
	}
	if size < 0 {
		return nil, fmt.Errorf("%w: a buffer of %d bytes", ErrFormat, size)
	}
	if err := u.left.take(2 * size); err != nil {
		return nil, err
	}

	if codec == codecLZ4 {
		if u.lz4 == nil {
			u.lz4 = lz4.NewReader(nil)
		}
		u.lz4.Reset(bytes.NewReader(p))
		out := make([]byte, size)
		if _, err := io.ReadFull(u.lz4, out); err != nil {
			return nil, fmt.Errorf("%w: LZ4: %w", ErrFormat, err)
		}
		return out, nil
	}

	d, err := zstandard()
	if err != nil {
		return nil, err
	}
	out, err := d.DecodeAll(p, make([]byte, 0, size))
	if err == nil && int64(len(out)) != size {
		err = fmt.Errorf("a buffer unpacks to %d bytes, not %d", len(out), size)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: Zstandard: %w", ErrFormat, err)
	}
	return out, nil
}
