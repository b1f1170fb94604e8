module github.com/modelcompress/compress/compare

go 1.26.0

require (
	github.com/modelcompress/compress v0.0.0
	golang.org/x/sys v0.49.0
	gonum.org/v1/gonum v0.17.0
	gonum.org/v1/netlib v0.0.0-20230729102104-8b8060e7531f
)

require golang.org/x/sync v0.24.0 // indirect

replace github.com/modelcompress/compress => ../
