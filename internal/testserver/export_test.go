package testserver

import "strings"

// For the tests in package testserver_test.
var Members = members

const HomePrefix = homePrefix

// Descendants returns the processes that this process has started, each before its parent, without
// the go command, which ends with the program that it runs and then removes its own files.
func Descendants(pid int) ([]int, error) {
	all, err := processes()
	var below func(int) []int
	below = func(pid int) (pids []int) {
		for _, p := range all {
			if p.parent == pid {
				pids = append(pids, below(p.pid)...)
				if !strings.HasPrefix(p.args, "go run ") {
					pids = append(pids, p.pid)
				}
			}
		}
		return pids
	}
	return below(pid), err
}
