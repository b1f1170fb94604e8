package kernels

// Keeper is a device that moves contents of its buffers to the host when its memory is full.
type Keeper interface {
	// Keep tells that src holds the contents of b, a weight, and stays valid and unchanged until b is freed or
	// written: the device need not copy b to the host to do without its memory for a while.
	Keep(b *Buffer, src []byte)
}

// Keep tells a device that moves contents of buffers to the host, if it is one, where the contents of a weight
// are; see [Keeper].
func Keep(dev Device, b *Buffer, src []byte) {
	if k, ok := As[Keeper](dev); ok {
		k.Keep(b, src)
	}
}
