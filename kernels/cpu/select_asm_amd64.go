//go:build amd64 && !noasm

package cpu

//go:noescape
func keysF32AVX512(dst *int32, x *float32, col *float32, n int, abs uint32)

//go:noescape
func keysBF16AVX512(dst *int32, x *uint16, col *float32, n int, abs uint32)

//go:noescape
func keysF16AVX512(dst *int32, x *uint16, col *float32, n int, abs uint32)

//go:noescape
func withinAVX512(dst, keys *int32, n int, lo, hi int32) (kept, below int)

//go:noescape
func aboveAVX512(mask *uint8, keys *int32, n int, t int32) (equal int)

//go:noescape
func groupsAVX512(mask *uint8, keys *int32, vectors, step, turns int, turn *rotation, n int32, ahead uintptr)

//go:noescape
func sumSq1AVX512(acc *float64, x *float32, n int)

//go:noescape
func sumSq4AVX512(acc *float64, x *float32, n, stride int)

//go:noescape
func zero32AVX512(w *float32, mask *uint8, n int)

//go:noescape
func zero16AVX512(w *uint16, mask *uint8, n int)

//go:noescape
func finite32AVX512(x *float32, n int) int

//go:noescape
func finite16AVX512(x *uint16, n int, inf uint16) int

//go:noescape
func count32AVX512(x *float32, n int) int

//go:noescape
func count16AVX512(x *uint16, n int) int

//go:noescape
func count8AVX512(x *uint8, n int) int

//go:noescape
func keysF32AVX2(dst *int32, x *float32, col *float32, n int, abs uint32)

//go:noescape
func keysBF16AVX2(dst *int32, x *uint16, col *float32, n int, abs uint32)

//go:noescape
func keysF16AVX2(dst *int32, x *uint16, col *float32, n int, abs uint32)

//go:noescape
func withinAVX2(dst, keys *int32, n int, lo, hi int32, table *[256][8]uint8) (kept, below int)

//go:noescape
func aboveAVX2(mask *uint8, keys *int32, n int, t int32) (equal int)

//go:noescape
func groupsAVX2(mask *uint8, keys *int32, vectors, step, turns int, turn *rotation, n int32, ahead uintptr)

//go:noescape
func wideGroupsAVX2(mask *uint8, keys *int32, groups, m int, left *[16]int32, n int32)

//go:noescape
func sumSq1AVX2(acc *float64, x *float32, n int)

//go:noescape
func sumSq4AVX2(acc *float64, x *float32, n, stride int)

//go:noescape
func zero32AVX2(w *float32, mask *uint8, n int)

//go:noescape
func zero16AVX2(w *uint16, mask *uint8, n int)

//go:noescape
func finite32AVX2(x *float32, n int) int

//go:noescape
func finite16AVX2(x *uint16, n int, inf uint16) int

//go:noescape
func count32AVX2(x *float32, n int) int

//go:noescape
func count16AVX2(x *uint16, n int) int

//go:noescape
func count8AVX2(x *uint8, n int) int
