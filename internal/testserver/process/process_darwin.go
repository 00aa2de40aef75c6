package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// States of a process, from <sys/proc.h>.
const (
	stateStopped = 4
	stateZombie  = 5
)

// Find returns what is known about pid, or ErrGone. Start counts microseconds.
func Find(pid int) (Info, error) {
	entry, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(entry.Proc.P_pid) != pid || entry.Proc.P_stat == stateZombie {
		return Info{}, fmt.Errorf("%w: %d", ErrGone, pid)
	}
	return info(entry), nil
}

// All returns every process that can be seen.
func All() ([]Info, error) {
	entries, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	var all []Info
	for i := range entries {
		if entries[i].Proc.P_stat != stateZombie {
			all = append(all, info(&entries[i]))
		}
	}
	return all, nil
}

// Under is not known here: macOS tells nobody the working directory of another process without extra tools.
func Under(string) ([]Info, error) { return nil, nil }

// Namespace tells apart machines that might share a directory or a Docker engine.
func Namespace() string {
	host, _ := os.Hostname()
	return host
}

func info(entry *unix.KinfoProc) Info {
	start := entry.Proc.P_starttime
	return Info{
		ID:      ID{PID: int(entry.Proc.P_pid), Start: uint64(start.Sec)*1_000_000 + uint64(start.Usec)},
		Parent:  int(entry.Eproc.Ppid),
		Name:    unix.ByteSliceToString(entry.Proc.P_comm[:]),
		Stopped: entry.Proc.P_stat == stateStopped,
	}
}
