// Package cuda is the backend for NVIDIA graphics processors. It finds the driver at run time (libcuda.so.1, by
// dlopen, without cgo), loads kernels that were compiled to PTX when the package was written, and needs nothing
// else on the machine. The driver compiles them for the processor at hand, compute capability 8.0 or later.
//
// # Use
//
//	dev, err := cuda.Open(0, cuda.Options{}) // the first GPU; device.Open("cuda:0", …) adds what the backend lacks
//	defer dev.Close()
//	model, err := lm.Load(ctx, "MODEL", dev, lm.Options{})
//
// # Order
//
// A device has two streams. Operations run on one in the order of their calls; transfers to the device run on
// the other, through a ring of pinned memory, while operations run. An operation waits for the transfers to its
// own operands only, and a transfer for operations that were called before it, unless nothing can have used the
// buffer yet. Calls return before the work is done; [kernels.Ops].Sync and Download wait. With
// COMPRESS_CUDA_SYNC=1 in the environment every operation waits for its end, so that a failure names the
// operation that caused it.
//
// # Memory
//
// cuBLASLt's algorithms have 32 MiB on devices of 1 GiB and more, taken at the first product if they are free.
// Buffers that do not fit wait on the host. When memory is full, the contents of those that were not used for
// the longest time move there, and come back for the operation that uses them, on the stream of transfers,
// beside the operations before. What was not written since is not copied again, and [Device.Keep] tells where a
// copy is already. So a model of any size runs, a block at a time, on a device that holds the operands of one
// operation.
//
// # Formulas
//
// A formula is read by a kernel, so that one that was never seen costs no compilation: statistics, scores, and
// scores with the selection of a row are one launch each. After 256 uses the driver compiles it, on a thread
// beside the work, and what it made is used from then on, with the same bits; 64 stay loaded. A formula of more
// than eight values at a time is compiled at its first use.
//
// # Accuracy
//
// Products, and attention and its gradients for more than 16 queries with heads of up to 128 channels, run on
// tensor cores without rounding their factors: a float32 factor is split into three bfloat16 numbers whose sum
// it is, and the products of the parts are added in float32, the small ones first. With [kernels.Fast] one part
// is used where the rules of Ops allow it. Statistics, norms and losses are summed in float64, in an order that
// depends on shapes alone: a device gives the same bits every time.
//
// # Failures
//
// Errors say the device, the operation and what the driver called it. [ErrOutOfMemory] lists what was held, by
// label; [ErrLost] says that the device is gone for this process. After a failed operation those that follow do
// nothing until Sync has reported it.
package cuda
