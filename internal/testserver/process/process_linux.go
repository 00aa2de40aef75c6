package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Find returns what is known about pid, or ErrGone. Start counts the kernel's clock ticks since boot.
func Find(pid int) (Info, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Info{}, fmt.Errorf("%w: %d", ErrGone, pid)
	}
	return parseStat(pid, stat)
}

// parseStat reads /proc/<pid>/stat, see proc(5). The name in parentheses may itself hold parentheses and blanks, so
// the fields are counted from its last closing one.
func parseStat(pid int, stat []byte) (Info, error) {
	left, right := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if left < 0 || right < left {
		return Info{}, fmt.Errorf("process: cannot read the state of %d", pid)
	}
	const state, parent, start = 0, 1, 19 // fields 3, 4 and 22 of the file
	fields := strings.Fields(string(stat[right+1:]))
	if len(fields) <= start {
		return Info{}, fmt.Errorf("process: cannot read the state of %d", pid)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return Info{}, fmt.Errorf("%w: %d", ErrGone, pid)
	}
	ppid, err := strconv.Atoi(fields[parent])
	ticks, err2 := strconv.ParseUint(fields[start], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return Info{}, fmt.Errorf("process: cannot read the state of %d: %w", pid, err)
	}
	return Info{
		ID:      ID{PID: pid, Start: ticks},
		Parent:  ppid,
		Name:    string(stat[left+1 : right]),
		Stopped: fields[state] == "T",
	}, nil
}

// All returns every process that can be seen.
func All() ([]Info, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	var all []Info
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if info, err := Find(pid); err == nil {
			all = append(all, info)
		}
	}
	return all, nil
}

// Under returns the processes whose working directory is dir or lies below it, as far as that can be seen. It finds
// what a server left behind also when the parent is gone, since every PostgreSQL process works in its data directory.
func Under(dir string) ([]Info, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	var under []Info
	for _, info := range all {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", info.PID))
		cwd = strings.TrimSuffix(cwd, " (deleted)")
		if err == nil && (cwd == dir || strings.HasPrefix(cwd, dir+"/")) {
			under = append(under, info)
		}
	}
	return under, nil
}

// Namespace tells apart machines, boots and containers that might share a directory or a Docker engine: pids can be
// compared only within one namespace.
func Namespace() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSpace(string(boot)) + " " + pids
}
