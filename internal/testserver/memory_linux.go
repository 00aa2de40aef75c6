package testserver

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryRoot is a file system in memory that every user may write to.
func memoryRoot() string { return "/dev/shm" }

// plentyOfMemory reports whether servers can live there without being missed: a run needs some hundred megabytes.
// Containers have tiny ones, which this leaves alone.
func plentyOfMemory(root string) bool {
	const space, free = 2 << 30, 4 << 30
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Flags&unix.ST_NOEXEC != 0 {
		return false // noexec: downloaded programs run from there
	}
	return fs.Bavail*uint64(fs.Bsize) >= space && availableMemory() >= free
}

func availableMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kilobytes uint64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kilobytes); err == nil {
			return kilobytes << 10
		}
	}
	return 0
}
