module github.com/modelcompress/compress/kernels/_gen

go 1.26.0
