module github.com/modelcompress/compress/kernels/_gen/cuda

go 1.26.0

require github.com/ebitengine/purego v0.11.3
