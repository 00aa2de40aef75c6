// Package process tells which processes of this machine are alive.
//
// A pid alone names nothing for long: it is reused. An [ID] joins it with the time at which the process started, so
// that a note left in a file about a process can be judged later, by another process, without mistaking a newcomer
// for the one that is gone.
package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrGone is returned for a process that doesn't exist, or that has ended and only waits to be collected.
var ErrGone = errors.New("process: gone")

// ID names one process for good.
type ID struct {
	PID int `json:"pid"`
	// Start is when the process started, in a unit that only this system knows. Compare it, do nothing else with it.
	Start uint64 `json:"start"`
}

// Info is what the system tells about a living process.
type Info struct {
	ID
	Parent  int
	Name    string // of the executable, without its directory; some systems cut it to 15 bytes
	Stopped bool   // by SIGSTOP
}

// Self returns the calling process.
func Self() (ID, error) {
	info, err := Find(os.Getpid())
	return info.ID, err
}

// Alive reports whether the process still runs. A pid that was reused is not alive.
func (id ID) Alive() bool {
	info, err := Find(id.PID)
	return err == nil && info.Start == id.Start
}

// String returns a form that Parse reads and that fits in a file name.
func (id ID) String() string {
	return fmt.Sprintf("%d-%d", id.PID, id.Start)
}

// Parse reads what String wrote.
func Parse(s string) (ID, error) {
	before, after, found := strings.Cut(s, "-")
	pid, err := strconv.Atoi(before)
	start, err2 := strconv.ParseUint(after, 10, 64)
	if !found || err != nil || err2 != nil || pid <= 0 {
		return ID{}, fmt.Errorf("process: %q is no process id", s)
	}
	return ID{PID: pid, Start: start}, nil
}

// Children returns the living processes whose parent is pid.
func Children(pid int) ([]Info, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	var children []Info
	for _, info := range all {
		if info.Parent == pid {
			children = append(children, info)
		}
	}
	return children, nil
}
