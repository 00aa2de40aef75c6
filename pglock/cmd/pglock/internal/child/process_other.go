//go:build !linux

package child

// Hook does nothing: only Linux has a supervisor.
func Hook() {}

// Expired returns false: there is no supervisor.
func (p *Process) Expired() bool { return false }

// Alive is GroupAlive: a job has all processes that the command has started, and those that have
// left a group can't be found.
func (p *Process) Alive() bool { return p.GroupAlive() }

// Remaining reports whether a process is left. It returns no names, since the processes of a group
// or a job can't be listed.
func (p *Process) Remaining() (names []string, left bool) { return nil, p.GroupAlive() }
