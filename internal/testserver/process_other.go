//go:build !linux

package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// processes returns all processes, as ps lists them. Windows has no states.
func processes() ([]process, error) {
	list := exec.Command("ps", "-axwwo", "pid=,ppid=,state=,args=")
	if runtime.GOOS == "windows" {
		list = exec.Command("powershell", "-NoProfile", "-NonInteractive", "-Command", "Get-CimInstance Win32_Process | "+
			`ForEach-Object { "$($_.ProcessId) $($_.ParentProcessId) - $($_.CommandLine)" }`)
	}
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", list.Path, err)
	}
	var all []process
	for line := range strings.Lines(string(out)) {
		var p process
		var state string
		if _, err := fmt.Sscan(line, &p.pid, &p.parent, &state); err == nil {
			p.state, p.args = state[0], line
			all = append(all, p)
		}
	}
	return all, nil
}

// find returns a process, or an error if there is none.
func find(pid int) (process, error) {
	all, err := processes()
	if err != nil {
		return process{}, err
	}
	for _, p := range all {
		if p.pid == pid {
			return p, nil
		}
	}
	return process{}, os.ErrProcessDone
}

// scarce is always true: only Linux has a directory in memory that anybody can use.
func scarce(string, uint64, uint64) bool { return true }
