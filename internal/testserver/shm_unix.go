//go:build linux || darwin

package testserver

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes the small System V segment that a server keeps as an interlock against a second one on
// the same data. A killed server can't do it itself, and its data directory won't be started again.
func (s *Server) removeSharedMemory() { removeSharedMemoryOf(s.data()) }

// removeSharedMemoryOf finds the segment's key and id in the seventh line of postmaster.pid. That file is there only
// after a crash. A segment that anybody is attached to, or that somebody else made, is left alone.
func removeSharedMemoryOf(data string) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return
	}
	creator, err := strconv.Atoi(lines[0])
	id, err2 := strconv.Atoi(fields[1])
	if err != nil || err2 != nil {
		return
	}
	var segment unix.SysvShmDesc
	if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &segment); err != nil {
		return
	}
	if segment.Nattch != 0 || int(segment.Cpid) != creator {
		return
	}
	_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // a matter of tidiness, not of the test's result
}
