package child

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// procStat is a process as /proc lists it.
type procStat struct {
	pid, parent, group int
	name               string
	start              string // start time; together with the pid it identifies the process
}

func (p procStat) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.pid) }

// signalTree sends the signals to the command's group and to all other descendants of this process
// except one. The group gets them first, because the others must be found in /proc, which takes
// longer when the machine is busy. It may miss a process whose parent ends meanwhile; the next call
// finds that one.
func signalTree(command, except int, signals ...syscall.Signal) error {
	var all []error
	for _, sig := range signals {
		all = append(all, signalGroup(command, sig))
	}
	for _, d := range descendants(os.Getpid(), except) {
		if d.group == command {
			continue
		}
		if err := d.signal(signals...); err != nil {
			all = append(all, fmt.Errorf("%v: %w", d, err))
		}
	}
	return errors.Join(all...)
}

// descendants returns all processes below root, without the process except. The children of except
// are included, but zombies are not.
//
// descendants can miss a process whose parent ends while it reads /proc: it may find neither the
// old parent nor the new one.
func descendants(root, except int) []procStat {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // without /proc only the process group is known
	}
	children := map[int][]procStat{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readProcess(pid); ok {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	var found []procStat
	below := []procStat{{pid: root}}
	for len(below) > 0 {
		next := children[below[0].pid]
		below = append(below[1:], next...)
		for _, p := range next {
			if p.pid != except {
				found = append(found, p)
			}
		}
	}
	return found
}

// readProcess reads /proc/PID/stat, and returns false for a process that has ended.
func readProcess(pid int) (procStat, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	return parseStat(pid, string(text))
}

// parseStat parses the fields of proc(5). The second one, the name, may contain any characters.
func parseStat(pid int, text string) (procStat, bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return procStat{}, false
	}
	fields := strings.Fields(text[end+1:])
	const third = 3 // the number of the first field after the name
	if len(fields) <= 22-third {
		return procStat{}, false
	}
	parent, err1 := strconv.Atoi(fields[4-third])
	group, err2 := strconv.Atoi(fields[5-third])
	if err1 != nil || err2 != nil {
		return procStat{}, false
	}
	// A process whose first thread has ended has the state of a zombie while its other threads run.
	if state, threads := fields[0], fields[20-third]; state == "X" || state == "Z" && (threads == "0" || threads == "1") {
		return procStat{}, false
	}
	return procStat{pid: pid, parent: parent, group: group, name: text[open+1 : end], start: fields[22-third]}, true
}

// signal sends the signals unless the process has ended. After FindProcess the handle can't refer
// to another process, and the second read of /proc then shows that it is the same process as
// before.
func (p procStat) signal(signals ...syscall.Signal) error {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	if now, ok := readProcess(p.pid); !ok || now.start != p.start {
		return nil
	}
	for _, sig := range signals {
		if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}
