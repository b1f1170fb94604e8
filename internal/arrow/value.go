package arrow

import (
	"fmt"
	"math"
	"strings"

	lib "github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// What values cost in memory, about.
const (
	costItem = 32
	costRow  = 256
	costPair = 96
)

// converter makes values of what the library has decoded.
type converter struct {
	left *allowance
	row  int64 // what the record so far has cost
}

func (c *converter) spend(n int64) error {
	if c.row += n; c.row > maxRow {
		return fmt.Errorf("%w: a record of more than %d bytes", ErrUnsupported, maxRow)
	}
	return c.left.take(n)
}

// record is a row of a record batch.
func (c *converter) record(batch lib.RecordBatch, i int) (*pyvalue.Dict, error) {
	c.row = 0
	return c.dict(int(batch.NumCols()), func(j int) (string, lib.Array) {
		return batch.ColumnName(j), batch.Column(j)
	}, i)
}

// dict is a row of columns.
func (c *converter) dict(n int, column func(j int) (name string, a lib.Array), i int) (*pyvalue.Dict, error) {
	if err := c.spend(costRow + costPair*int64(n)); err != nil {
		return nil, err
	}

	d := pyvalue.NewDict()
	for j := range n {
		name, a := column(j)
		v, err := c.value(a, i)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
		d.Set(name, v)
	}
	return d, nil
}

// value is an element of a column; one that is absent is nil.
func (c *converter) value(a lib.Array, i int) (any, error) {
	if i < 0 || i >= a.Len() {
		return nil, fmt.Errorf("%w: element %d of a column of %d", ErrFormat, i, a.Len())
	}
	if a.IsNull(i) {
		return nil, nil
	}

	switch a := a.(type) {
	case *array.Null:
		return nil, nil
	case *array.Boolean:
		return a.Value(i), nil
	case *array.Struct:
		t := a.DataType().(*lib.StructType)
		return c.dict(a.NumField(), func(j int) (string, lib.Array) { return t.Field(j).Name, a.Field(j) }, i)
	case *array.Dictionary:
		return c.value(a.Dictionary(), a.GetValueIndex(i))
	case array.ExtensionArray:
		return c.value(a.Storage(), i)
	case array.ListLike:
		return c.list(a, i)
	}

	switch a := a.(type) {
	case array.StringLike:
		text := a.Value(i)
		if err := pyvalue.CheckUTF8(text); err != nil {
			return nil, err
		}
		return text, c.spend(costItem + int64(len(text)))
	case interface{ Value(i int) []byte }: // binaries of any kind
		// What is no UTF-8, as in images, has no other place in a record.
		data := a.Value(i)
		return strings.ToValidUTF8(string(data), "\ufffd"), c.spend(costItem + int64(len(data)))
	}
	return number(a, i)
}

// list is a list of any kind, of fixed length or not.
func (c *converter) list(a array.ListLike, i int) (any, error) {
	start, end := a.ValueOffsets(i)
	items := a.ListValues()
	if start < 0 || end < start || end > int64(items.Len()) {
		return nil, fmt.Errorf("%w: elements %d to %d of %d", ErrFormat, start, end, items.Len())
	}
	if err := c.spend(costItem * (1 + end - start)); err != nil {
		return nil, err
	}

	list := make([]any, 0, end-start)
	for j := start; j < end; j++ {
		v, err := c.value(items, int(j))
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// number is a whole number or a fraction.
func number(a lib.Array, i int) (any, error) {
	switch a := a.(type) {
	case *array.Int8:
		return int64(a.Value(i)), nil
	case *array.Int16:
		return int64(a.Value(i)), nil
	case *array.Int32:
		return int64(a.Value(i)), nil
	case *array.Int64:
		return a.Value(i), nil
	case *array.Uint8:
		return int64(a.Value(i)), nil
	case *array.Uint16:
		return int64(a.Value(i)), nil
	case *array.Uint32:
		return int64(a.Value(i)), nil
	case *array.Uint64:
		if v := a.Value(i); v > math.MaxInt64 {
			return nil, fmt.Errorf("%w: the whole number %d, which takes more than 64 bits with a sign",
				ErrUnsupported, v)
		}
		return int64(a.Value(i)), nil
	case *array.Float16:
		return float64(a.Value(i).Float32()), nil
	case *array.Float32:
		return float64(a.Value(i)), nil
	case *array.Float64:
		return a.Value(i), nil
	}
	return ticks(a, i)
}

// ticks is a date or a time as Parquet has it: days, or ticks of the unit of the column, which for points in time is
// never the second.
func ticks(a lib.Array, i int) (any, error) {
	switch a := a.(type) {
	case *array.Date32:
		return int64(a.Value(i)), nil
	case *array.Date64:
		return int64(a.Value(i)) / (24 * 60 * 60 * 1000), nil
	case *array.Duration:
		return int64(a.Value(i)), nil
	case *array.Time64:
		return int64(a.Value(i)), nil
	case *array.Time32:
		return milliseconds(int64(a.Value(i)), a.DataType().(*lib.Time32Type).Unit), nil
	case *array.Timestamp:
		return milliseconds(int64(a.Value(i)), a.DataType().(*lib.TimestampType).Unit), nil
	}
	return nil, fmt.Errorf("%w: columns of type %s", ErrUnsupported, a.DataType())
}

func milliseconds(n int64, unit lib.TimeUnit) int64 {
	if unit == lib.Second {
		return n * 1000
	}
	return n
}
