//go:build !linux

package testserver

// memoryRoot is empty where there is no file system in memory.
func memoryRoot() string { return "" }

func plentyOfMemory(string) bool { return false }
