package process

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Find returns what is known about pid, or ErrGone. Start counts tenths of microseconds.
func Find(pid int) (Info, error) {
	all, err := snapshot(func(candidate int) bool { return candidate == pid })
	if err != nil {
		return Info{}, err
	}
	if len(all) == 0 {
		return Info{}, fmt.Errorf("%w: %d", ErrGone, pid)
	}
	return all[0], nil
}

// All returns every process that can be seen.
func All() ([]Info, error) {
	return snapshot(func(int) bool { return true })
}

// Under is not known here: Windows tells nobody the working directory of another process.
func Under(string) ([]Info, error) { return nil, nil }

// Namespace tells apart machines that might share a directory or a Docker engine.
func Namespace() string {
	host, _ := os.Hostname()
	return host
}

func snapshot(wanted func(pid int) bool) ([]Info, error) {
	handle, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	defer windows.CloseHandle(handle)

	var all []Info
	var entry windows.ProcessEntry32
	entry.Size = uint32(unsafe.Sizeof(entry))
	for err = windows.Process32First(handle, &entry); err == nil; err = windows.Process32Next(handle, &entry) {
		pid := int(entry.ProcessID)
		if !wanted(pid) {
			continue
		}
		start, err := started(entry.ProcessID)
		if err != nil {
			continue // ended meanwhile, or not ours to look at
		}
		all = append(all, Info{
			ID:     ID{PID: pid, Start: start},
			Parent: int(entry.ParentProcessID),
			Name:   windows.UTF16ToString(entry.ExeFile[:]),
		})
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("process: %w", err)
	}
	return all, nil
}

// started returns when the process started, and an error when it has ended already: a handle that somebody keeps
// open makes an ended process show up for longer.
func started(pid uint32) (uint64, error) {
	handle, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.SYNCHRONIZE, false, pid)
	if err != nil {
		return 0, err
	}
	defer windows.CloseHandle(handle)
	if event, err := windows.WaitForSingleObject(handle, 0); err == nil && event == windows.WAIT_OBJECT_0 {
		return 0, ErrGone
	}
	var creation, exit, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(handle, &creation, &exit, &kernel, &user); err != nil {
		return 0, err
	}
	return uint64(creation.HighDateTime)<<32 | uint64(creation.LowDateTime), nil
}
