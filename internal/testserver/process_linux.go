package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processes returns all processes. One that ends meanwhile may be missing.
func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		if p, err := find(pid); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// find returns a process, or an error if there is none. See proc_pid_stat(5).
func find(pid int) (process, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, err
	}
	p := process{pid: pid}
	// The second field is the program's name in parentheses, which may itself contain them.
	if _, err = fmt.Sscanf(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " %c %d", &p.state, &p.parent); err != nil {
		return process{}, fmt.Errorf("%s/stat: %w", dir, err)
	}
	args, err := os.ReadFile(filepath.Join(dir, "cmdline")) // empty for a zombie
	p.args = strings.ReplaceAll(string(args), "\x00", " ")
	return p, err
}

// scarce reports whether a directory has less than this much space, or the machine less than this
// much memory.
func scarce(dir string, space, memory uint64) bool {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil || disk.Bavail*uint64(disk.Bsize) < space {
		return true
	}
	text, err := os.ReadFile("/proc/meminfo")
	_, after, found := strings.Cut(string(text), "\nMemAvailable:")
	var kilobytes uint64
	if err != nil || !found {
		return true
	}
	_, err = fmt.Sscan(after, &kilobytes)
	return err != nil || kilobytes<<10 < memory
}
