package main

// ownDeclarations are the Go declarations of what is written here.
var ownDeclarations = map[string]string{}
