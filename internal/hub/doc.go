// Package hub finds the models of the Hugging Face hub by their names in its cache on this machine ([Locate]), and
// downloads them into it or into a folder ([Client.Pull]).
//
// The layout of the cache is that of huggingface_hub, so that both programs find what the other has downloaded:
//
//	models--OWNER--NAME/refs/main            the commit that a revision stands for
//	models--OWNER--NAME/snapshots/COMMIT/…   the files by their names, links to
//	models--OWNER--NAME/blobs/CHECKSUM       their contents; SHA-256, or git's SHA-1 of a small file
//
// Three of the hub's endpoints are used: api/models/ID/revision/REVISION for the commit, api/models/ID/tree/COMMIT for
// the names, sizes and checksums of the files, in pages, and ID/resolve/COMMIT/FILE for a file, which may lead to
// another host.
//
// It stands on net/http alone. github.com/gomlx/go-huggingface v0.4.0, whose hub package is the best kept client in Go,
// compares no checksums, does not go on with half a file, refuses files that lie on another host, and brings some forty
// modules with it, among them a machine learning framework.
package hub
